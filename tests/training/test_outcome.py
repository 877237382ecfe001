from pathlib import Path

import torch
from torch import nn

import diffsparse as ds
from diffsparse.measuring.meter import measure_in_turns
from diffsparse.training.outcome import file_size, latencies, layer_table
from tests.plot.examples import IMAGES, small_net


def test_layers_before_and_after() -> None:
    small = ds.compact(small_net(), IMAGES[:1]).model
    before, after = measure_in_turns([small_net(), small], IMAGES[:1], latency=False)
    first, second, last = layer_table(small_net(), small, before, after)
    assert (first["name"], first["kind"]) == ("0", "Conv2d 3x3")
    assert (first["inputs"], first["outputs"]) == ([1, 1], [4, 1])
    assert first["macs"] == [36 * 9 * 4, 36 * 9]
    assert second["params"][0] == 4 * 6 * 9 + 6
    assert second["outputs"] == [6, 5]
    assert (last["kind"], last["inputs"]) == ("Linear", [96, 80])
    assert sum(row["macs"][1] for row in (first, second, last)) == after.macs


def test_a_layer_that_is_gone_counts_nothing() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.branch, self.norm = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            return x + self.norm(self.branch(x))

    net = Residual().eval()
    nn.init.zeros_(net.norm.weight)
    small = ds.compact(net, IMAGES[:1]).model
    before, after = measure_in_turns([net, small], IMAGES[:1], latency=False)
    rows = {row["name"]: row for row in layer_table(net, small, before, after)}
    assert rows["branch"]["outputs"] == [4, 0]
    assert rows["branch"]["macs"] == [16 * 64, 0]
    assert rows["stem"]["outputs"] == [4, 4]


def test_times_of_both_networks() -> None:
    pair = measure_in_turns([small_net()] * 2, IMAGES[:1], seconds=0.01, min_runs=3)
    times = latencies(*pair)
    assert times is not None
    assert times["plain"]["median"] == pair[0].latency.median
    assert times["compact"]["runs"] >= 3
    assert latencies(*measure_in_turns([small_net()] * 2, IMAGES[:1], latency=False)) is None


def test_the_size_of_a_file_that_does_not_stay(tmp_path: Path) -> None:
    ds.save(small_net(), tmp_path / "net.safetensors")
    size = (tmp_path / "net.safetensors").stat().st_size
    (tmp_path / "net.safetensors").unlink()
    assert file_size(small_net(), tmp_path) == size
    assert list(tmp_path.iterdir()) == []
