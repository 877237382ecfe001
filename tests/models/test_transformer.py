import sys

import pytest
import torch

import diffsparse as ds
from diffsparse import SparsityError
from diffsparse.models import create
from diffsparse.models.transformer import LanguageModel, TextClassifier, VisionTransformer, scaled_width


def test_padding_changes_nothing() -> None:
    torch.manual_seed(0)
    model = TextClassifier(3, length=12, layers=2, heads=2).double().eval()
    tokens = torch.randint(1, 256, (2, 5))
    padded = torch.nn.functional.pad(tokens, (0, 7))
    torch.testing.assert_close(model(padded), model(tokens))
    assert not torch.allclose(model(tokens), model(tokens.flip(1)))


def test_a_language_model_sees_the_past_alone() -> None:
    torch.manual_seed(0)
    model = LanguageModel(length=12, layers=2, heads=2).double().eval()
    tokens = torch.randint(256, (1, 12))
    changed = tokens.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 256
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7], after[:, 7])


def test_a_multiplier_scales_heads() -> None:
    assert (scaled_width(1.0, 4), scaled_width(0.5, 4), scaled_width(0.7, 2)) == (128, 64, 44)
    whole, half = VisionTransformer(10, layers=1), create("vit-tiny-0.5")
    assert half.network.config.hidden_size == 64 == whole.network.config.hidden_size // 2
    with pytest.raises(SparsityError, match=r"the width multiplier 0\.01 leaves nothing of a head of size 32"):
        scaled_width(0.01, 4)


def test_wrong_sizes_are_refused() -> None:
    for make in (
        lambda: TextClassifier(0),
        lambda: LanguageModel(length=0),
        lambda: LanguageModel(dropout=2.0),
        lambda: VisionTransformer(10, patch=64),
    ):
        with pytest.raises(SparsityError, match="must be a"):
            make()


@pytest.mark.parametrize("make", [lambda: TextClassifier(2), LanguageModel, lambda: VisionTransformer(10)])
def test_without_the_library_the_extra_is_named(make: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SparsityError, match="is built with transformers; install it with: pip install transformers"):
        make()


@pytest.mark.parametrize(
    ("model", "example"),
    [
        (lambda: TextClassifier(2, length=16, layers=2, heads=4), torch.arange(1, 65).view(4, 16)),
        (lambda: LanguageModel(length=16, layers=2, heads=4), torch.arange(1, 65).view(4, 16)),
        (lambda: VisionTransformer(10, layers=2), torch.linspace(-1, 1, 12288).view(4, 3, 32, 32)),
    ],
    ids=["bert", "gpt", "vit"],
)
def test_heads_and_neurons_leave(model: object, example: torch.Tensor) -> None:
    torch.manual_seed(0)
    net = ds.sparsify(model(), example, compete="layer")
    budget = ds.Budget(net, example[:1], macs=0.5, steps=4, due=1.0)
    optimizer = torch.optim.AdamW(ds.parameter_groups(net, gate_lr=5e-3), lr=1e-3)
    for _ in range(4):
        loss = net(example).square().mean() + budget.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        budget.step(optimizer)
    assert 0.4 < budget.cost["macs"] <= 0.5
    assert budget.small.max_difference < 1e-5
