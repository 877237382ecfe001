"""Classes of positions: a table over them is right at every size."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from diffsparse.compaction.positions import Axis, Size, Window, common


def drawn(generator: random.Random) -> Window:
    kernel, ceil = generator.randint(1, 4), generator.random() < 0.3
    before, after = generator.randint(0, kernel // 2), generator.randint(0, 2)
    after = before if ceil else after
    return Window(kernel, generator.randint(1, 3), before, after, generator.randint(1, 2), ceil)


def size_of(size: Size, image: int) -> int:
    """The size that follows from an image of this size."""
    return image if size.of is None else (size_of(size.of, image) - size.least) // size.stride + 1


def stretched(table: Tensor, axis: Axis, image: int) -> Tensor:
    base = size_of(axis.base, image)
    places = range((base - axis.least) // axis.stride + 1)
    classes = [(min(o, axis.left), min(base - axis.least - axis.stride * o, axis.right)) for o in places]
    return table[[first * (axis.right + 1) + rest for first, rest in classes]]


def over_image(windows: list[Window], image: int) -> Tensor | None:
    """What windows make of a constant image, one position after the other; None if one of them does not fit."""
    x = torch.full((image,), 1.3, dtype=torch.float64)
    for window in windows:
        count = (len(x) - window.least) // window.stride + 1
        if count < 1:
            return None
        padded = F.pad(x, (window.before, window.after + window.reach + window.stride))
        starts = [o * window.stride for o in range(count)]
        x = torch.stack([summary(padded[o : o + window.reach + 1 : window.dilation]) for o in starts])
    return x


def summary(entries: Tensor) -> Tensor:
    return torch.tanh(entries @ torch.arange(1.0, entries.shape[-1] + 1).double() / 3 + 0.3)


def over_classes(windows: list[Window]) -> tuple[Tensor, Axis]:
    axis, table = Axis.flat(Size()), torch.tensor([1.3], dtype=torch.float64)
    for window in windows:
        axis, taken, _ = axis.through(window)
        table = summary(torch.cat([table, table.new_zeros(1)])[taken])
    return table, axis


@pytest.mark.parametrize("seed", range(40))
def test_a_table_is_right_at_every_size(seed: int) -> None:
    generator = random.Random(seed)
    windows = [drawn(generator) for _ in range(generator.randint(1, 4))]
    table, axis = over_classes(windows)
    assert len(table) == axis.classes
    rebased, seen = axis, table
    while not axis.is_flat and rebased.base.of is not None:
        rebased, classes = rebased.rebased()
        seen = seen[classes]
    for image in range(1, 30):
        expected = over_image(windows, image)
        if expected is not None:
            assert torch.allclose(stretched(table, axis, image), expected, atol=1e-12)
            assert size_of(axis.size, image) == len(expected)
            assert torch.allclose(stretched(seen, rebased, image), expected, atol=1e-12)


@pytest.mark.parametrize(
    "window", [Window(3, 2, 1, 1, 1, True), Window(2, 3, 0, 0, 1, True), Window(3, 3, 1, 1, 2, True)]
)
def test_as_many_windows_as_a_pool_with_ceil_mode_has(window: Window) -> None:
    for image in range(window.reach + 1, 20):
        x = torch.zeros(1, 1, image)
        pooled = F.max_pool1d(x, window.kernel, window.stride, window.before, window.dilation, ceil_mode=True)
        assert pooled.shape[-1] == (image - window.least) // window.stride + 1


def test_windows_that_keep_the_size_keep_the_object_and_equal_windows_share_one() -> None:
    size = Size()
    assert size.through(Window(3, 1, 1, 1)) is size
    assert size.through(Window(3, 2, 1, 1)) is size.through(Window(1, 2))
    assert size.through(Window(2, 2)) is not size.through(Window(1, 2))


def test_a_common_axis_is_as_fine_as_both() -> None:
    size = Size()
    first, *_ = Axis.flat(size).through(Window(3, 2, 1, 1))
    start = Axis.flat(first.size)
    second, *_ = start.through(Window(5, 1, 2, 2))
    found = common([first, second, start])
    assert found is not None
    joint, (seen, others, flat) = found
    assert joint.base is size
    assert (joint.left, joint.right) == (2, 4)
    assert len(seen) == len(others) == len(flat) == joint.classes
    assert flat.eq(0).all()
    table_a, table_b = torch.arange(first.classes), torch.arange(second.classes)
    for image in range(4, 20):
        assert torch.equal(stretched(table_a[seen], joint, image), stretched(table_a, first, image))
        assert torch.equal(stretched(table_b[others], joint, image), stretched(table_b, second, image))


def test_axes_of_other_sizes_have_nothing_in_common() -> None:
    assert common([Axis.flat(Size()), Axis.flat(Size())]) is None
