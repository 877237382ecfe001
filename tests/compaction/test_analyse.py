"""From facts to needs and widths."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.compaction.rules.groups import filled
from diffsparse.compaction.widening import Widening
from diffsparse.testing import zero_channels
from tests.compaction.nets import randomise
from tests.compaction.tiny import Tiny, analysed, chosen, complement, tiny


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv, self.last = nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(self.conv(F.relu(self.norm(x))))


def block(dead: str) -> Tiny:
    model = tiny(Block())
    zero_channels(getattr(model.between, dead))
    return model


def test_results_are_needed_whole() -> None:
    model = randomise(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)))
    zero_channels(model[1], [0, 1])
    (result,) = analysed(model).graph.results
    assert result.need.all()
    assert result.keep.all()


def test_widths_are_what_is_needed() -> None:
    layers = [layer for _, layer in analysed(tiny(dead=[0, 6])).layers]
    assert chosen(layers[0].rows) == chosen(layers[1].rows) == chosen(layers[2].columns) == complement(0, 6)


def test_without_narrowing_tensors_keep_their_width_and_layers_shrink() -> None:
    analysis = analysed(tiny(dead=[0, 6]), narrow=False)
    layer = analysis.layers[0][1]
    assert layer.output.keep.all()
    assert chosen(layer.rows) == complement(0, 6)


def test_without_trust_a_reshape_with_sizes_is_rigid() -> None:
    model = tiny(lambda y: y.view(y.shape[0], -1, 64).relu().view(y.shape), dead=[0])
    assert chosen(analysed(model).layers[0][1].output.keep) == complement(0)
    assert analysed(model, trust_reshape_sizes=False).layers[1][1].output.keep.all()


def test_a_dead_block_is_one_node_that_passes_its_input_on() -> None:
    analysis = analysed(block("last"))
    assert list(analysis.removed) == ["between"]
    assert [node.op for node in analysis.nodes] == ["conv2d", "batch_norm", "module", "conv2d"]


def test_a_block_whose_inside_is_used_elsewhere_stays() -> None:
    class Leaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: Tensor) -> Tensor:
            return self.block(x) * self.block.conv.weight.mean()

    model = tiny(Leaks())
    zero_channels(model.between.block.last)
    assert analysed(model).removed == {}


def test_the_model_itself_is_never_removed() -> None:
    model = randomise(Block())
    zero_channels(model.last)
    assert "" not in analysed(model, torch.randn(2, 8, 4, 4).double()).removed


class Beside(nn.Module):
    """A branch that can become one map, beside the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def test_a_constant_that_varies_over_pixels_is_emitted_by_the_outermost_module() -> None:
    model = tiny(Beside())
    assert not analysed(model).emitted
    model.between.branch[0].weight.data[:] = 0
    assert list(analysed(model).emitted) == ["between.branch"]


def test_a_map_that_nobody_reads_is_not_emitted() -> None:
    model = tiny(Beside())
    model.between.branch[0].weight.data[:] = 0
    model.head.weight.data[:] = 0
    assert not analysed(model).emitted


def test_a_layer_is_free_only_as_a_module_of_its_own() -> None:
    model = tiny(lambda y: F.conv2d(y, y.new_ones(8, 8, 1, 1)))
    assert [layer.free for _, layer in analysed(model).layers] == [True, True, True]
    alone = nn.Conv2d(3, 4, 1).double()
    assert [layer.free for _, layer in analysed(alone).layers] == [False]


def test_a_layer_that_a_hook_changes_is_not_free() -> None:
    model = tiny()
    model.conv.register_forward_hook(lambda module, args, output: output.tanh())
    model.head.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    assert [layer.free for _, layer in analysed(model).layers] == [False, True, False]


def test_at_least_one_channel_stays() -> None:
    layers = analysed(tiny(dead=range(8))).layers
    assert chosen(layers[0][1].output.keep) == [0]
    assert not layers[0][1].rows.any()


def test_rounding_takes_the_first_that_are_there() -> None:
    layers = [layer for _, layer in analysed(tiny(dead=[0, 1, 2]), widening=Widening(round_to=2)).layers]
    assert [int(layer.rows.sum()) for layer in layers[:2]] == [6, 6]
    mask = np.array([False, False, True, False])
    assert chosen(filled(mask, 2, np.array([False, True, True, True]))) == [1, 2]
    assert chosen(filled(mask, 4, mask)) == [2]
