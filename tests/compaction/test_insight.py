"""Calls that the recorder looks into: scripted functions, and attention written in Python."""

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import diffsparse as ds
from diffsparse.compaction.insight import can_look_into
from tests.compaction.nets import same
from tests.compaction.shrinks import shrinks
from tests.compaction.tiny import OTHER, X, recorded, tiny


def written_swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    swish = torch.jit.script(written_swish)


class Swish(nn.Module):
    def forward(self, y: Tensor) -> Tensor:
        return swish(y)


def test_a_scripted_activation_is_recorded_as_it_was_written() -> None:
    model = tiny(Swish(), dead=[0, 1, 5])
    assert [node.op for node in recorded(model).nodes][-3:-1] == ["sigmoid", "mul"]
    small = shrinks(model)
    assert small.model.head.in_channels == 5
    assert not small.kept


def test_scripted_functions_stay_scripted() -> None:
    before = torch.jit.ScriptFunction.__call__
    recorded(tiny(Swish()))
    assert torch.jit.ScriptFunction.__call__ is before
    assert torch.equal(swish(X), X * X.sigmoid())


class SelfAttention(nn.Module):
    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.attention, self.options = nn.MultiheadAttention(8, 2, batch_first=True), options

    def forward(self, y: Tensor) -> Tensor:
        tokens = y.flatten(2).transpose(1, 2)
        out, _ = self.attention(tokens, tokens, tokens, **self.options)
        return out.transpose(1, 2).unflatten(2, y.shape[2:])


def test_attention_of_torch_is_recorded_operation_by_operation() -> None:
    assert can_look_into(F.multi_head_attention_forward)
    asks = F.has_torch_function
    for options, op in (({}, "bmm"), ({"need_weights": False}, "scaled_dot_product_attention")):
        model = tiny(SelfAttention(**options), dead=[0, 1])
        assert op in {node.op for node in recorded(model).nodes}
        small = ds.compact(model, X)
        assert small.model.conv.out_channels == 6
        # it insists on its width
        assert small.model.norm(torch.zeros(1, 6, 2, 2).double()).shape[1] == 8
        assert not small.fallbacks
        assert same(model, small.model, OTHER)
    assert F.has_torch_function is asks


def test_a_head_of_attention_without_values_reaches_nothing_behind_it() -> None:
    model = tiny(SelfAttention(need_weights=False))
    attention = model.between.attention
    # values of the first head
    attention.in_proj_weight.data[16:20] = 0
    attention.in_proj_bias.data[16:20] = 0
    heads = [node for node in recorded(model).nodes if node.op == "scaled_dot_product_attention"]
    assert heads[0].output.fixed.reshape(-1, 2, 4).all((0, 2)).tolist() == [True, False]
    assert same(model, ds.compact(model, X).model, OTHER)


def test_an_encoder_layer_shrinks_around_its_attention() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

        def forward(self, y: Tensor) -> Tensor:
            return self.layer(y.flatten(2).transpose(1, 2)).transpose(1, 2).unflatten(2, y.shape[2:])

    model = tiny(Encoder(), dead=[0, 1])
    layer = model.between.layer
    layer.linear1.weight.data[:6] = 0
    layer.linear1.bias.data[:6] = 0
    small = ds.compact(model, X)
    assert small.model.between.layer.linear1.out_features == 10
    assert small.model.between.layer.linear2.in_features == 10
    assert same(model, small.model, OTHER)
