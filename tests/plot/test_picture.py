import sys
from pathlib import Path

import matplotlib
import pytest
import torch

from diffsparse import SparsityError
from diffsparse.graphs import draw_graph, draw_heat_map, save_picture
from diffsparse.plot.picture import blank_figure


@pytest.mark.parametrize(
    ("name", "begin"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.PNG", b"\x89PNG"), ("a.pdf", b"%PDF")]
)
def test_ending_decides_the_format(tmp_path: Path, name: str, begin: bytes) -> None:
    save_picture(tmp_path / name, blank_figure(2, 1))
    assert (tmp_path / name).read_bytes().startswith(begin)


@pytest.mark.parametrize("name", ["a.jpeg", "a", ".png"])
def test_other_endings_are_refused_and_write_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(SparsityError, match=r"written as \.png, \.svg or \.pdf, got .*" + name):
        save_picture(tmp_path / name, blank_figure(2, 1))
    assert list(tmp_path.iterdir()) == []


def test_missing_matplotlib_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SparsityError, match="pip install matplotlib"):
        blank_figure(2, 1)


def test_names_are_not_read_as_formulas(tmp_path: Path) -> None:
    names = [r"$\frac$", "$a$", "b_1"]
    for draw in (draw_graph, draw_heat_map):
        save_picture(tmp_path / "graph.svg", draw(torch.eye(3), torch.ones(3, 3), names=names))


def test_global_state_of_matplotlib_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    before = matplotlib.rcParams.copy()
    save_picture(tmp_path / "graph.png", draw_graph(torch.eye(3), torch.ones(3, 3)))
    save_picture(tmp_path / "heat.svg", draw_heat_map(torch.eye(3), torch.ones(3, 3)))
    assert "matplotlib.pyplot" not in sys.modules
    assert matplotlib.rcParams.copy() == before
    assert len(list(tmp_path.iterdir())) == 2
