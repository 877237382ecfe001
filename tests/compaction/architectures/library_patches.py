"""Image networks of the transformers package with attention."""

from tests.compaction.architectures.library import EVEN, MOBILE_VIT, images

images(
    "MobileViT",
    "MobileViTForImageClassification",
    lambda t: t.MobileViTConfig(**MOBILE_VIT, num_attention_heads=2),
    64,
    EVEN,
)
images(
    "MobileViTV2",
    "MobileViTV2ForImageClassification",
    lambda t: t.MobileViTV2Config(width_multiplier=0.25, n_attn_blocks=[1, 1, 1], num_labels=5, image_size=64),
    64,
    EVEN,
)
images(
    "LeViT",
    "LevitForImageClassification",
    lambda t: t.LevitConfig(
        image_size=64,
        hidden_sizes=[16, 32, 48],
        num_attention_heads=[2, 2, 3],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
        num_labels=5,
    ),
    64,
    ((1, 64), (3, 64), (5, 64)),
    quick=True,
)
images(
    "SwiftFormer",
    "SwiftFormerForImageClassification",
    lambda t: t.SwiftFormerConfig(depths=[1, 1, 1, 1], embed_dims=[16, 24, 32, 48], mlp_ratio=2, num_labels=5),
    64,
    EVEN,
)
images(
    "Swin",
    "SwinForImageClassification",
    lambda t: t.SwinConfig(
        image_size=32, patch_size=4, embed_dim=16, depths=[1, 2], num_heads=[2, 4], window_size=4, num_labels=5
    ),
    32,
    ((1, 32), (3, 32), (5, 32)),
)
_PATCHES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
# all positions, because the oracle calls it dead if only one of them is read, and compaction is about channels
_STATES = ("last_hidden_state",)
_SAME = ((1, 32), (3, 32), (5, 32))
images("ViT", "ViTModel", lambda t: t.ViTConfig(**_PATCHES), 32, _SAME, returns=_STATES)
images("DeiT", "DeiTModel", lambda t: t.DeiTConfig(**_PATCHES), 32, _SAME, returns=_STATES)
images("BEiT", "BeitForImageClassification", lambda t: t.BeitConfig(**_PATCHES, num_labels=5), 32, _SAME)
images(
    "DINOv2", "Dinov2ForImageClassification", lambda t: t.Dinov2Config(**_PATCHES, mlp_ratio=2, num_labels=5), 32, _SAME
)
images("CLIP, images", "CLIPVisionModel", lambda t: t.CLIPVisionConfig(**_PATCHES), 32, _SAME, returns=_STATES)
images(
    "CvT",
    "CvtForImageClassification",
    lambda t: t.CvtConfig(embed_dim=[16, 24, 32], num_heads=[1, 2, 2], depth=[1, 2, 3], num_labels=5),
    64,
    EVEN,
)
images(
    "PVTv2",
    "PvtV2ForImageClassification",
    lambda t: t.PvtV2Config(
        image_size=64,
        hidden_sizes=[16, 24, 32, 48],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4],
        mlp_ratios=[2, 2, 2, 2],
        num_labels=5,
    ),
    64,
    EVEN,
)
images(
    "FocalNet",
    "FocalNetForImageClassification",
    lambda t: t.FocalNetConfig(
        image_size=32,
        embed_dim=16,
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 24, 32, 48],
        use_layerscale=True,
        layerscale_value=1.0,
        num_labels=5,
    ),
    32,
    _SAME,
)
