"""Architectures that nobody here wrote, built offline from their configurations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import diffsparse as ds
from diffsparse.compaction.materialise import materialise
from tests.compaction.oracle import live_macs

transformers = pytest.importorskip("transformers")


def resnet(kind: str) -> nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[32, 64, 96], depths=[2, 2, 1], layer_type=kind, num_labels=7
    )
    return transformers.ResNetForImageClassification(config)


def regnet() -> nn.Module:
    config = transformers.RegNetConfig(
        embedding_size=16, hidden_sizes=[32, 64, 96], depths=[1, 2, 1], groups_width=32, layer_type="y", num_labels=7
    )
    return transformers.RegNetForImageClassification(config)


def mobilenet_v1() -> nn.Module:
    return transformers.MobileNetV1ForImageClassification(
        transformers.MobileNetV1Config(depth_multiplier=0.25, num_labels=7)
    )


def mobilenet_v2() -> nn.Module:
    return transformers.MobileNetV2ForImageClassification(
        transformers.MobileNetV2Config(depth_multiplier=0.35, num_labels=7)
    )


def efficientnet() -> nn.Module:
    config = transformers.EfficientNetConfig(width_coefficient=0.5, depth_coefficient=0.5, hidden_dim=640, num_labels=7)
    return transformers.EfficientNetForImageClassification(config)


def segmenter() -> nn.Module:
    backbone = transformers.ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = transformers.UperNetConfig(
        backbone_config=backbone, hidden_size=24, auxiliary_in_channels=48, auxiliary_channels=16, num_labels=5
    )
    return transformers.UperNetForSemanticSegmentation(config)


CONVOLUTIONAL: dict[str, Callable[[], nn.Module]] = {
    "resnet-basic": lambda: resnet("basic"),
    "resnet-bottleneck": lambda: resnet("bottleneck"),
    "regnet": regnet,
    "mobilenet-v1": mobilenet_v1,
    "mobilenet-v2": mobilenet_v2,
    "efficientnet": efficientnet,
    "segmenter": segmenter,
}


def zero_half(model: nn.Module, seed: int = 0) -> nn.Module:
    """Gates in every batch norm, half of them zero; statistics and shifts random."""
    torch.manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            # the configurations' own start lets signals fade until rounding hides them from the oracle
            nn.init.kaiming_normal_(module.weight)
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            n = module.num_features
            module.running_mean.copy_(0.1 * torch.randn(n))
            module.running_var.copy_(0.5 + torch.rand(n))
            alive = (torch.rand(n) < 0.5).double()
            module.weight.data.copy_((0.5 + torch.rand(n)) * alive)
            module.bias.data.copy_(0.1 * torch.randn(n) * alive)
    return ds.sparsify(model.double().eval())


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_half_of_the_gates_zero(name: str) -> None:
    model = zero_half(CONVOLUTIONAL[name]())
    size = 64 if name == "segmenter" else 40
    example = {"pixel_values": torch.randn(2, 3, size, size, dtype=torch.float64)}
    small = ds.compact(model, example)
    assert small.max_difference < 1e-9
    other = {"pixel_values": torch.randn(1, 3, size + 8, size + 8, dtype=torch.float64)}
    with torch.no_grad():
        expected, got = model(**other).logits, small.model(**other).logits
    assert torch.allclose(expected, got, rtol=0, atol=1e-9 * float(expected.abs().max()))
    live, _ = live_macs(materialise(model), lambda: {"pixel_values": torch.randn_like(example["pixel_values"])})
    assert small.after.macs <= 1.1 * live


def vit() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.ViTConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=8,
        num_labels=3,
    )
    return transformers.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 16, 16)}


def bert() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    return transformers.BertForSequenceClassification(config), {"input_ids": torch.randint(50, (2, 7))}


@pytest.mark.parametrize("build", [vit, bert])
def test_transformers_are_kept_with_a_reason(build: Callable[[], tuple[nn.Module, dict[str, Any]]]) -> None:
    torch.manual_seed(0)
    model, example = build()
    small = ds.compact(model.eval(), example)
    assert small.max_difference < 1e-5
    reasons = [entry.reason for entry in small.kept]
    assert any("layer_norm" in reason for reason in reasons)
    assert small.after.params == small.before.params
