import sys
from pathlib import Path

import pytest
import torch

from diffsparse.errors import SparsityError
from diffsparse.wiring import picture, wiring_graph
from diffsparse.wiring.picture import draw_wiring
from tests.wiring.nets import drop, tiny

LAYOUT = ((4, 6, 1, 2), (6, 8, 2, 3))


def test_svg_tells_the_counts_and_is_the_same_each_time(tmp_path: Path) -> None:
    net = tiny(drop(0.6, seed=1), *LAYOUT)
    text = draw_wiring(net, tmp_path / "a.svg").read_text()
    assert text == draw_wiring(wiring_graph(net), str(tmp_path / "b.svg")).read_text()
    assert text.count("<svg") == 1
    assert "stage 2" in text
    assert "stage 3" not in text
    usable = 6 * (4 + 10) + 8 * (6 + 14 + 22)
    assert f"of {usable} edges alive" in text


def test_png(tmp_path: Path) -> None:
    data = draw_wiring(tiny(drop(0.6), *LAYOUT), tmp_path / "net.PNG").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 20_000


def test_a_dead_graph_and_a_thinned_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "0 of 48 edges" in draw_wiring(tiny(drop(1.0), (6, 8, 1, 1)), tmp_path / "dead.svg").read_text()
    monkeypatch.setattr(picture, "MOST_LINES", 10)
    text = draw_wiring(tiny(drop(0.0), (6, 8, 1, 1)), tmp_path / "full.svg").read_text()
    assert "48 of 48 edges alive (100.00%)" in text
    assert "at most 10 edges per stage drawn" in text


def test_wrong_files(tmp_path: Path) -> None:
    net = tiny(drop(0.5), *LAYOUT)
    for name in ("net.jpeg", "net"):
        with pytest.raises(SparsityError, match=r"written as \.png, \.svg or \.pdf"):
            draw_wiring(net, tmp_path / name)
    with pytest.raises(SparsityError, match="cannot write"):
        draw_wiring(net, tmp_path / "nowhere" / "net.svg")
    with pytest.raises(SparsityError, match="is not a wired network"):
        draw_wiring(torch.nn.Linear(2, 2), tmp_path / "net.svg")


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SparsityError, match="pip install matplotlib"):
        draw_wiring(tiny(drop(0.5), *LAYOUT), tmp_path / "net.svg")
