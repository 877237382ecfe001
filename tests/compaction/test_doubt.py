"""Code that pads or branches by sizes: what is constant at one size is not taken for constant at another."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.doubt import Doubts
from diffsparse.compaction.recording import recorded
from diffsparse.example import Example
from tests.compaction.nets import randomise


class Halves(nn.Module):
    """Pads odd images with zeros in front of a convolution that leaves nothing over."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.conv, self.always = nn.Conv2d(6, 6, 2, 2), always

    def forward(self, x: Tensor) -> Tensor:
        odd = [size % 2 for size in x.shape[-2:]]
        if any(odd) or self.always:
            x = F.pad(x, (0, odd[1], 0, odd[0]))
        y: Tensor = self.conv(x)
        return y


class Padded(nn.Module):
    def __init__(self, always: bool, times: int = 1) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6)
        self.halves = nn.Sequential(*(Halves(always) for _ in range(times)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.halves(self.norm(self.first(x)))
        return y


def with_constants(always: bool, times: int = 1) -> Padded:
    model = randomise(Padded(always, times)).eval()
    with torch.no_grad():
        model.norm.weight[:3] = 0
        model.norm.bias[:2], model.norm.bias[2] = 1.5, 0
    return model


def assert_same_everywhere(model: nn.Module, small: nn.Module) -> None:
    for size in (8, 9, 10, 11, 13):
        x = torch.randn(2, 3, size, size + 1, dtype=torch.float64)
        with torch.no_grad():
            assert torch.allclose(model(x), small(x), rtol=0, atol=1e-10), f"at {size}"


def test_padding_at_some_sizes():
    for always in (False, True):
        for example in (8, 9):
            model = with_constants(always)
            small = ds.compact(model, torch.randn(2, 3, example, example, dtype=torch.float64))
            assert small.fallbacks == ()
            # zeros are zeros at every size; other constants are not where images are padded, and one stands for all
            assert small.model.halves[0].conv.in_channels == 4
            assert_same_everywhere(model, small.model)


def test_a_branch_seen_in_one_module_is_expected_in_others_of_its_class():
    model = with_constants(False, times=2)
    with torch.no_grad():
        model.halves[0].conv.weight[:2], model.halves[0].conv.bias[:2] = 0, 0.7
    # at 16 and 5 pixels only the first of them pads, at 18 only the second
    small = ds.compact(model, torch.randn(2, 3, 16, 16, dtype=torch.float64)).model
    assert_same_everywhere(model, small)
    x = torch.randn(2, 3, 18, 18, dtype=torch.float64)
    assert torch.allclose(model(x), small(x), atol=1e-10)


def test_without_questions_about_sizes_nothing_is_recorded_again(monkeypatch):
    runs = []
    monkeypatch.setattr(Doubts, "__init__", lambda self, *graphs: runs.append(graphs))
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3)).double().eval()
    model[1].weight.data[0] = 0
    model[1].bias.data[0] = 1
    ds.compact(model, torch.randn(2, 3, 8, 8, dtype=torch.float64))
    assert runs == []


class Adjusts(nn.Module):
    """Remembers the smallest image that it has seen, as windows of attention do."""

    def __init__(self) -> None:
        super().__init__()
        self.window, self.conv = 6, nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        self.window = min(self.window, x.shape[-1])
        y: Tensor = self.conv(x)[..., : self.window]
        return y


def test_a_run_leaves_no_trace_in_the_compact_model():
    model = Adjusts().double().eval()
    model.conv.weight.data[0] = 0
    small = ds.compact(model, torch.randn(1, 3, 5, 5, dtype=torch.float64)).model
    assert (model.window, small.window) == (6, 6)
    copy = Adjusts().double().eval()
    recorded(copy, Example.of(torch.randn(1, 3, 5, 5, dtype=torch.float64)))
    assert copy.window == 6


class Rearranged(nn.Module):
    """Pads odd images with zeros, makes channels of pixels or picks them, and reads these with a convolution."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.conv = nn.Conv2d(24 if how in {"unshuffle", "views"} else 6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        height, width = (size + size % 2 for size in x.shape[-2:])
        x = F.pad(x, (0, width - x.shape[-1], 0, height - x.shape[-2]))
        if self.how == "unshuffle":
            x = F.pixel_unshuffle(x, 2)
        elif self.how == "views":
            x = x.view(len(x), 6, height // 2, 2, width // 2, 2).permute(0, 1, 3, 5, 2, 4)
            x = x.reshape(len(x), 24, height // 2, width // 2)
        elif self.how == "picked":
            # a row of its own for each channel, the last ones from the end
            x = x[:, [0, 1, 2, 3, 4, 5], [0, 1, -1, 0, 1, 2]][:, :, None]
        elif self.how == "turned":
            x = x.flip(1).roll(1, 2)[:, :, 1:]
        y: Tensor = self.conv(x)
        return y


def test_channels_that_are_moved_differently_are_not_merged():
    for how in ("unshuffle", "views", "picked", "turned"):
        model = randomise(nn.Sequential(nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6), Rearranged(how))).eval()
        with torch.no_grad():
            model[1].weight[:3] = 0
            model[1].bias[:3] = torch.tensor([1.5, -0.5, 2.0])
        small = ds.compact(model, torch.randn(2, 3, 8, 8, dtype=torch.float64))
        assert small.fallbacks == ()
        assert small.model[2].conv.in_channels == {"picked": 6, "turned": 4}.get(how, 24)
        assert_same_everywhere(model, small.model)


class Treats(nn.Module):
    """Does something to its input that depends on sizes, and reads the result with a convolution."""

    def __init__(self, treat: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.treat, self.conv = treat, nn.Conv2d(6, 6, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(self.treat(x))
        return y


def to_multiple(of: int, value: float) -> Callable[[Tensor], Tensor]:
    def pad(x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        return F.pad(x, (0, -width % of, 0, -height % of), value=value) if height % of or width % of else x

    return pad


def to_square(x: Tensor) -> Tensor:
    height, width = x.shape[-2:]
    return x if height == width else F.pad(x, (0, max(height - width, 0), 0, max(width - height, 0)))


def of_small_and_large(x: Tensor) -> Tensor:
    if x.shape[-1] < 6:
        return F.pad(x, (1, 1, 1, 1))
    return x if x.shape[-1] < 20 else F.gelu(x)


TREATMENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "even": to_multiple(2, 0.0),
    "multiple of four": to_multiple(4, 1.0),
    "square": to_square,
    "small and large": of_small_and_large,
    "one sample": lambda x: F.pad(x, (1, 1, 1, 1)) if len(x) == 1 else x,
    "centred": lambda x: x - x.mean((2, 3), keepdim=True) if x.shape[-1] % 2 else x,
    "turned": lambda x: x.flip(1) if x.shape[-1] % 2 else x,
    "other mode": lambda x: F.interpolate(x, scale_factor=2) if x.shape[-1] < 10 else F.interpolate(x, (9, 9)),
}


@pytest.mark.parametrize("how", TREATMENTS)
@pytest.mark.parametrize("size", [9, 12, 28])
def test_sizes_that_are_treated_differently_are_found(how, size):
    # a quarter of 12 or 28 and one more pixel is a multiple of four again
    model = randomise(nn.Sequential(nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6), Treats(TREATMENTS[how]))).eval()
    with torch.no_grad():
        model[1].weight[:3] = 0
        model[1].bias[:3] = torch.tensor([1.5, -0.5, 2.0])
    small = ds.compact(model, torch.randn(2, 3, size, size, dtype=torch.float64))
    assert small.fallbacks == ()
    for batch, height, width in ((2, 8, 8), (1, 9, 9), (3, 12, 12), (2, 13, 13), (2, 12, 15), (2, 28, 28), (2, 30, 30)):
        x = torch.randn(batch, 3, height, width, dtype=torch.float64)
        with torch.no_grad():
            assert torch.allclose(model(x), small.model(x), rtol=0, atol=1e-10), f"at {batch, height, width}"


class Masked(nn.Module):
    """Pads odd images, and adds something where a mask hides anything."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.other = nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6), nn.BatchNorm2d(6)
        self.conv, self.last = nn.Conv2d(6, 6, 2, 2), nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.first(x)
        z = self.other(y)
        z = z if bool(mask.all()) else z + 1
        w: Tensor = self.conv(to_multiple(2, 0.0)(self.norm(y))).mean((2, 3), keepdim=True) + self.last(z).mean()
        return w


def test_sizes_are_doubted_where_masks_are():
    model = randomise(Masked()).eval()
    with torch.no_grad():
        for norm in (model.norm, model.other):
            norm.weight[:3], norm.bias[:3] = 0, torch.tensor([1.5, -0.5, 2.0])
    shows = torch.ones(2, 5, dtype=torch.long)
    hides = shows.clone()
    hides[0, 3:] = 0
    for mask in (shows, hides):
        small = ds.compact(model, (torch.randn(2, 3, 8, 8, dtype=torch.float64), mask)).model
        for size in (8, 9, 11):
            x = torch.randn(2, 3, size, size, dtype=torch.float64)
            for other in (shows, hides):
                with torch.no_grad():
                    assert torch.allclose(model(x, other), small(x, other), rtol=0, atol=1e-10), f"at {size}"
