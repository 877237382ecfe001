"""Networks of the transformers package that segment, detect or estimate depth."""

from typing import Any

from tests.compaction.architectures.library import EVEN, MOBILE_VIT, images

_TAPS = ["stage1", "stage2", "stage3", "stage4"]


def _backbone(t: Any, **more: Any) -> Any:
    sizes = {"embedding_size": 16, "hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1], "layer_type": "basic"}
    return t.ResNetConfig(**sizes, **more)


images(
    "MobileNetV2, DeepLabV3+",
    "MobileNetV2ForSemanticSegmentation",
    lambda t: t.MobileNetV2Config(depth_multiplier=0.35, num_labels=5, output_stride=8),
)
images(
    "MobileViT, DeepLabV3",
    "MobileViTForSemanticSegmentation",
    lambda t: t.MobileViTConfig(**MOBILE_VIT, num_attention_heads=2, aspp_out_channels=24),
    64,
    EVEN,
)
images(
    "SegFormer",
    "SegformerForSemanticSegmentation",
    lambda t: t.SegformerConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 24, 32, 48],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=32,
        num_labels=5,
    ),
    64,
    EVEN,
    quick=True,
)
images(
    "UperNet on ResNet",
    "UperNetForSemanticSegmentation",
    lambda t: t.UperNetConfig(
        backbone_config=_backbone(t, out_features=_TAPS),
        hidden_size=24,
        auxiliary_in_channels=48,
        auxiliary_channels=16,
        num_labels=5,
    ),
    64,
    EVEN,
)
images(
    "DPT",
    "DPTForSemanticSegmentation",
    lambda t: t.DPTConfig(
        hidden_size=24,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=48,
        image_size=32,
        patch_size=8,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[12, 16, 24, 32],
        fusion_hidden_size=24,
        use_batch_norm_in_fusion_residual=True,
        num_labels=4,
    ),
    32,
    ((1, 32), (3, 32), (5, 32)),
)
_DETR = {
    "d_model": 24,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "num_queries": 5,
    "num_labels": 4,
}
for _name in ("Detr", "ConditionalDetr", "TableTransformer"):
    images(
        {"Detr": "DETR", "ConditionalDetr": "Conditional DETR", "TableTransformer": "Table Transformer"}[_name],
        f"{_name}ForObjectDetection",
        lambda t, name=_name: getattr(t, f"{name}Config")(
            **_DETR,
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=_backbone(t, out_features=["stage4"]),
        ),
        64,
        EVEN,
        returns=("logits", "pred_boxes"),
    )
images(
    "RT-DETR ResNet",
    "RTDetrResNetBackbone",
    lambda t: t.RTDetrResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], layer_type="basic", out_features=_TAPS
    ),
    64,
    EVEN,
    returns=("feature_maps",),
)
images(
    "GLPN",
    "GLPNForDepthEstimation",
    lambda t: t.GLPNConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[16, 24, 32, 48], num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=24
    ),
    64,
    EVEN,
    returns=("predicted_depth",),
)
