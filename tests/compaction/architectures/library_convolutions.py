"""Convolutional networks of the transformers package, for whole images."""

from tests.compaction.architectures.library import EVEN, images

_STAGES = {"embedding_size": 16, "hidden_sizes": [32, 48, 64], "depths": [2, 2, 1], "num_labels": 7}
images(
    "ResNet, basic", "ResNetForImageClassification", lambda t: t.ResNetConfig(**_STAGES, layer_type="basic"), quick=True
)
images("ResNet, bottleneck", "ResNetForImageClassification", lambda t: t.ResNetConfig(**_STAGES))
images("RegNet X", "RegNetForImageClassification", lambda t: t.RegNetConfig(**_STAGES, groups_width=16, layer_type="x"))
images("RegNet Y", "RegNetForImageClassification", lambda t: t.RegNetConfig(**_STAGES, groups_width=16, layer_type="y"))
images(
    "MobileNetV1",
    "MobileNetV1ForImageClassification",
    lambda t: t.MobileNetV1Config(depth_multiplier=0.25, num_labels=7),
    quick=True,
)
images(
    "MobileNetV2",
    "MobileNetV2ForImageClassification",
    lambda t: t.MobileNetV2Config(depth_multiplier=0.35, num_labels=7),
    quick=True,
)
images(
    "EfficientNet",
    "EfficientNetForImageClassification",
    lambda t: t.EfficientNetConfig(width_coefficient=0.5, depth_coefficient=0.5, hidden_dim=640, num_labels=7),
)
images(
    "PoolFormer",
    "PoolFormerForImageClassification",
    lambda t: t.PoolFormerConfig(depths=[1, 1, 1, 1], hidden_sizes=[16, 24, 32, 48], num_labels=5),
)
images(
    "BiT",
    "BitForImageClassification",
    lambda t: t.BitConfig(embedding_size=16, hidden_sizes=[32, 64, 96], depths=[1, 1, 1], num_groups=8, num_labels=5),
)
_NEXT = {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 2, 1], "num_labels": 5}
images(
    "ConvNeXt",
    "ConvNextForImageClassification",
    lambda t: t.ConvNextConfig(**_NEXT, layer_scale_init_value=1.0),
    64,
    EVEN,
)
images("ConvNeXtV2", "ConvNextV2ForImageClassification", lambda t: t.ConvNextV2Config(**_NEXT), 64, EVEN)
images(
    "TextNet",
    "TextNetForImageClassification",
    lambda t: t.TextNetConfig(
        stem_out_channels=16,
        hidden_sizes=[16, 24, 32, 48, 48],
        conv_layer_kernel_sizes=[[[3, 3]], [[3, 3], [1, 3]], [[3, 3], [3, 1]], [[3, 3]]],
        conv_layer_strides=[[1], [2, 1], [2, 1], [2]],
        num_labels=5,
    ),
    64,
    EVEN,
)
images(
    "HGNetV2",
    "HGNetV2ForImageClassification",
    lambda t: t.HGNetV2Config(
        embedding_size=16,
        stem_channels=[3, 16, 16],
        hidden_sizes=[24, 32, 48, 64],
        depths=[1, 1, 1, 1],
        stage_in_channels=[16, 24, 32, 48],
        stage_mid_channels=[8, 8, 16, 16],
        stage_out_channels=[24, 32, 48, 64],
        stage_num_blocks=[1, 1, 1, 1],
        stage_numb_of_layers=[2, 2, 2, 2],
        num_labels=5,
    ),
    64,
    EVEN,
)
