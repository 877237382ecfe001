import pytest
import torch
import torch.nn.functional as F
from torch import nn

import diffsparse as ds
from diffsparse.models import (
    DenseNet,
    MobileNetV1,
    PreActivationResNet,
    PreResNet,
    ResNet,
    create,
    factory,
    names,
    register_family,
)
from diffsparse.models.factory import with_multiplier
from diffsparse.models.preactivation import BasicBlock, Bottleneck


@pytest.mark.parametrize("name", names())
def test_every_name_builds_sparsifies_and_trains(name: str) -> None:
    torch.manual_seed(0)
    model, images = create(name, 3, in_channels=1), torch.randn(2, 1, 32, 32)
    normed = any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    model = ds.sparsify(model, None if normed else images, start=0.5)
    assert not any(isinstance(module, nn.BatchNorm2d) and module.affine for module in model.modules())
    logits = model(images)
    assert logits.shape == (2, 3)
    F.cross_entropy(logits, torch.tensor([0, 2])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_names_are_each_listed_once() -> None:
    wanted = {"preresnet20", "preresnet164", "densenet40", "resnet50", "resnet50-preact", "mobilenetv1-0.25"}
    assert wanted < set(names())
    assert len(set(names())) == len(names())


@pytest.mark.parametrize(
    ("name", "kind", "stem"),
    [
        ("preresnet20", PreResNet, 16),
        ("preresnet20-0.5", PreResNet, 8),
        ("preresnet20-.5", PreResNet, 8),
        ("preresnet14-2", PreResNet, 32),
        ("densenet40", DenseNet, 24),
        ("densenet40-0.5", DenseNet, 12),
        ("densenet22-0.3", DenseNet, 6),
        ("resnet50", ResNet, 64),
        ("resnet50-0.25", ResNet, 16),
        ("resnet50-preact", PreActivationResNet, 64),
        ("resnet50-0.25-preact", PreActivationResNet, 16),
        ("mobilenetv1", MobileNetV1, 32),
        ("mobilenetv1-0.3", MobileNetV1, 9),
        ("mobilenetv1-0.5-imagenet", MobileNetV1, 16),
    ],
)
def test_names_are_read(name: str, kind: type[nn.Module], stem: int) -> None:
    with torch.device("meta"):
        model = create(name, 7, in_channels=2)
    assert type(model) is kind
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    assert (first.in_channels, first.out_channels, model.classifier.out_features) == (2, stem, 7)


def test_depth_and_variant_are_read() -> None:
    with torch.device("meta"):
        assert [len(stage) for stage in create("preresnet56").stages] == [9, 9, 9]
        assert type(create("preresnet110").stages[0][0]) is BasicBlock
        assert type(create("preresnet164").stages[0][0]) is Bottleneck
        assert [len(create("densenet22").stages[stage]) for stage in (0, 2, 4)] == [6, 6, 6]
        assert create("mobilenetv1").stem[0].stride == (1, 1)
        assert create("mobilenetv1-imagenet").stem[0].stride == (2, 2)
        assert create("mobilenetv1", 1).classifier.out_features == 1
        assert create("mobilenetv1").classifier.out_features == 10


@pytest.mark.parametrize(
    ("name", "closest"),
    [
        ("resnet5", "resnet50"),
        ("ResNet50", "resnet50"),
        ("preresnet20 ", "preresnet20"),
        ("preresnet20\n", "preresnet20"),
        ("preresnet020", "preresnet20"),
        ("preresne20", "preresnet20"),
        ("preresnet20-imagenet", "preresnet20"),
        ("preresnet20-0.5.1", "preresnet20-0.5"),
        ("desnenet40", "densenet40"),
        ("mobilenet", "mobilenetv1"),
        ("mobilenetv1-imagenet-0.5", "mobilenetv1-0.5-imagenet"),
        ("resnet50-1e1", "resnet50"),
    ],
)
def test_an_unknown_name_gets_the_closest_known_one(name: str, closest: str) -> None:
    with pytest.raises(ds.SparsityError) as caught:
        create(name)
    message = str(caught.value)
    assert message.startswith(f"unknown network {name!r}, the closest is {closest!r}; there are ")
    assert all(grammar in message for grammar in factory.FAMILIES.names())


@pytest.mark.parametrize("name", ["", "transformer", "-0.5"])
def test_a_name_like_no_other_gets_the_known_ones(name: str) -> None:
    with pytest.raises(ds.SparsityError, match=rf"unknown network '{name}'; there are preresnet<depth>"):
        create(name)


@pytest.mark.parametrize("name", [None, 50, b"resnet50"])
def test_a_name_is_a_string(name: object) -> None:
    with pytest.raises(ds.SparsityError, match="must be a string, got"):
        create(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["preresnet21", "preresnet2", "preresnet165", "densenet41", "densenet4"])
def test_impossible_depths(name: str) -> None:
    with pytest.raises(ds.SparsityError, match=r"has depth \dn \+ \d, n at least 1; got \d+"):
        create(name)


@pytest.mark.parametrize("name", ["preresnet20", "densenet40", "resnet50", "mobilenetv1"])
@pytest.mark.parametrize("multiplier", ["0", "0.0", "-1", "-0.5", "11", "100000", "9" * 400])
def test_absurd_multipliers(name: str, multiplier: str) -> None:
    with pytest.raises(
        ds.SparsityError, match=f"multiplier of '{name}-{multiplier}' must .* above 0 and of at most 10"
    ):
        create(f"{name}-{multiplier}")


@pytest.mark.parametrize(
    ("name", "channels"),
    [("preresnet20-0.06", 16), ("densenet40-0.08", 12), ("resnet50-0.01-preact", 64), ("mobilenetv1-0.03", 32)],
)
def test_multipliers_that_leave_nothing(name: str, channels: int) -> None:
    with pytest.raises(ds.SparsityError, match=f"'{name}' leaves nothing of {channels} channels"):
        create(name)


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("value", [0, 2.5])
def test_wrong_numbers_of_classes_and_channels(name: str, value: int) -> None:
    with torch.device("meta"):
        with pytest.raises(ds.SparsityError, match=f"num_classes must be a whole number of at least 1, got {value}"):
            create(name, value)
        with pytest.raises(ds.SparsityError, match=f"in_channels must be a whole number of at least 1, got {value}"):
            create(name, in_channels=value)


def test_a_family_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(match: object, num_classes: int, in_channels: int) -> nn.Module:
        return nn.Linear(in_channels, num_classes)

    entry = factory.Family(grammar="perceptron", pattern="perceptron", build=build, examples=("perceptron",))
    monkeypatch.setattr(factory.FAMILIES, "_things", dict(factory.FAMILIES.items()))
    register_family(entry)
    assert create("perceptron", 4, in_channels=2).weight.shape == (4, 2)
    assert names()[-1] == "perceptron"
    with pytest.raises(ds.SparsityError, match=r"closest is 'perceptron'.*, perceptron, and your own"):
        create("perceptrn")
    with pytest.raises(ds.SparsityError, match="already a family of networks called 'perceptron'"):
        register_family(factory.Family(grammar="perceptron", pattern="p", build=build, examples=()))


@pytest.mark.parametrize(
    ("name", "multiplier", "expected"),
    [
        ("preresnet20", 0.5, "preresnet20-0.5"),
        ("preresnet20", 1.0, "preresnet20-1"),
        ("preresnet20-0.5", 0.5, "preresnet20-0.25"),
        ("mobilenetv1-imagenet", 0.333, "mobilenetv1-0.333-imagenet"),
        ("resnet50-0.5-preact", 0.5, "resnet50-0.25-preact"),
        ("wired-mobilenet-small", 0.5, "wired-mobilenet-0.5-small"),
        ("traffic-gcn", 0.5, None),
    ],
)
def test_names_of_narrower_networks(name: str, multiplier: float, expected: str | None) -> None:
    assert with_multiplier(name, multiplier) == expected
