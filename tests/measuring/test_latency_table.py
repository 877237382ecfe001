"""The table of latencies: measured once, kept in a file that may be broken, old or written by others."""

import json
import multiprocessing
from pathlib import Path

import pytest
import torch

from diffsparse.errors import SparsityError
from diffsparse.measuring import latency_table
from diffsparse.measuring.latency_table import LatencyTable, default_path
from diffsparse.measuring.layer_shape import LayerShape, shape_of

SHAPES = [LayerShape(kind="linear", inputs=width, outputs=4, batch=2) for width in (3, 5)]


class Counted(LatencyTable):
    """Says 1, 2, 3, ... seconds, in the order in which it is asked."""

    timed = 0

    def time_layer(self, shape: LayerShape) -> float:
        self.timed += 1
        return float(self.timed)


def test_a_layer_is_measured_once_and_the_file_is_readable(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    table = Counted(tmp_path / "new" / "t.json", progress=lambda *at: seen.append(at))
    assert table.layer_seconds([*SHAPES, SHAPES[0]]) == [1, 2, 1]
    assert seen == [(1, 2), (2, 2)]
    again = Counted(tmp_path / "new" / "t.json")
    assert again.layer_seconds(SHAPES) == [1, 2]
    assert again.timed == 0
    data = json.loads((tmp_path / "new" / "t.json").read_text())
    (machine,) = data["machines"]
    assert f"torch {torch.__version__}" in machine
    assert "threads" in machine
    assert data["machines"][machine]["linear, 3->4, batch 2, float32"] == 1


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"format": 99, "machines": {}}', '{"format": 2}', '{"format": 2, "machines": {"a": {"b": "c"}}}'],
)
def test_a_file_that_cannot_be_read_is_written_anew(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    assert Counted(path).layer_seconds(SHAPES) == [1, 2]
    assert Counted(path).layer_seconds(SHAPES) == [1, 2]
    assert json.loads(path.read_text())["format"] == 2


def test_other_machines_and_versions_are_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json"
    Counted(path).layer_seconds(SHAPES)
    monkeypatch.setattr(torch, "__version__", "99.0")
    other = Counted(path)
    assert other.layer_seconds(SHAPES[::-1]) == [1, 2]
    assert other.timed == 2
    assert len(json.loads(path.read_text())["machines"]) == 2


def test_what_was_measured_is_kept_after_an_interrupt(tmp_path: Path) -> None:
    class Interrupted(Counted):
        def time_layer(self, shape: LayerShape) -> float:
            if self.timed:
                raise KeyboardInterrupt
            return super().time_layer(shape)

    with pytest.raises(KeyboardInterrupt):
        Interrupted(tmp_path / "t.json").layer_seconds(SHAPES)
    again = Counted(tmp_path / "t.json")
    assert again.layer_seconds(SHAPES[:1]) == [1]
    assert again.timed == 0


def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert Counted(tmp_path / "file" / "t.json").layer_seconds(SHAPES) == [1, 2]


def _add(path: Path, start: int) -> None:
    for width in range(start, start + 10):
        Counted(path).layer_seconds([LayerShape(kind="linear", inputs=width, outputs=1, batch=1)])


def test_several_writers_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add, args=(tmp_path / "t.json", start)) for start in (1, 101, 201)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    (times,) = json.loads((tmp_path / "t.json").read_text())["machines"].values()
    assert len(times) == 30


def test_the_file_is_in_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert LatencyTable().path == default_path() == tmp_path / "diffsparse" / "latency.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_path() == tmp_path / ".cache" / "diffsparse" / "latency.json"
    with pytest.raises(SparsityError, match="path must be"):
        LatencyTable(3)  # type: ignore[arg-type]


LAYERS = [
    (torch.nn.Conv2d(6, 4, 3, stride=2, padding=1), (2, 6, 9, 8)),
    (torch.nn.Conv2d(6, 6, 3, padding="same", groups=6), (2, 6, 9, 8)),
    (torch.nn.Conv1d(6, 4, 3, dilation=2), (2, 6, 9)),
    (torch.nn.ConvTranspose2d(6, 4, 2, stride=2), (2, 6, 4, 4)),
    (torch.nn.ConvTranspose1d(6, 4, 2, groups=2), (2, 6, 4)),
]


@pytest.mark.parametrize(("layer", "size"), LAYERS, ids=lambda each: type(each).__name__)
def test_a_layer_like_it_makes_what_the_layer_makes(layer: torch.nn.Conv2d, size: tuple[int, ...]) -> None:
    settings = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups")}
    kind = f"conv{'_transpose' if layer.transposed else ''}{len(size) - 2}d"
    shape = shape_of(kind, size, tuple(layer.weight.shape), torch.float32, **settings)
    assert shape is not None
    made = shape.call(torch.device("cpu"))()
    assert made.shape == layer(torch.zeros(size)).shape
    narrow = shape.with_widths(3, 2).call(torch.device("cpu"))()
    assert narrow.shape[2:] == made.shape[2:]
    assert narrow.shape[1] <= made.shape[1]


def test_linear_layers_and_batch_norms() -> None:
    linear = shape_of("linear", (2, 7, 5), (3, 5), torch.float64)
    assert linear is not None
    assert linear.call(torch.device("cpu"))().shape == (14, 3)
    norm = shape_of("batch_norm", (2, 7, 5, 5), (7,), torch.float32)
    assert norm is not None
    assert norm.with_widths(1, 4).call(torch.device("cpu"))().shape == (2, 4, 5, 5)
    assert shape_of("lstm", (2, 7, 5), (3, 5), torch.float32) is None
    assert LayerShape(kind="elementwise", inputs=4, outputs=4, batch=2).call(torch.device("cpu"))().shape == (2, 4)


def test_the_real_clock(tmp_path: Path) -> None:
    (seconds,) = LatencyTable(tmp_path / "t.json").layer_seconds(SHAPES[:1])
    assert 0 < seconds < 1
    assert latency_table.cpu_name()
