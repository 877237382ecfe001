"""`scaled_dot_product_attention`: heads whose values are zero."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from diffsparse.testing import check_rule
from tests.compaction.rules.test_contraction import heads, joined
from tests.compaction.shrinks import shrinks
from tests.compaction.tiny import analysed, chosen, node_of, recorded, tiny


def attention(y: Tensor, **options: object) -> Tensor:
    q, k, v = (heads(part) for part in y.chunk(3, 1))
    return joined(F.scaled_dot_product_attention(q, k, v, **options), y)


def test_rule_holds() -> None:
    check_rule(attention, widths=(12, 24), trials=15)
    check_rule(lambda y: attention(y, is_causal=True), widths=(12,), trials=5)


def test_queries_and_keys_of_a_dead_head_are_not_read() -> None:
    model = tiny(attention, dead=[3, 8, 9], width=12, head=4)
    analysis = analysed(model)
    assert chosen(node_of(analysis.graph, "scaled_dot_product_attention").output.fixed) == [0, 1]
    assert chosen(analysis.layers[0][1].rows) == [2, 6, 10, 11]
    shrinks(model)


def test_a_constant_is_its_own_average_unless_there_is_a_mask() -> None:
    model = tiny(attention, fixed=[9], width=12, head=4)
    assert chosen(node_of(recorded(model), "scaled_dot_product_attention").output.fixed) == [1]
    shrinks(model)
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    model = tiny(lambda y: attention(y, attn_mask=mask), dead=[8], fixed=[9], width=12, head=4)
    assert chosen(node_of(recorded(model), "scaled_dot_product_attention").output.fixed) == [0]
    shrinks(model, most=1.1)


def grouped(y: Tensor) -> Tensor:
    """Four heads of queries, two of keys and values, two channels each."""
    n, _, h, w = y.shape
    q, k, v = (part.flatten(2).transpose(1, 2) for part in y.split([8, 4, 4], 1))
    q, k, v = (part.unflatten(2, (-1, 2)).transpose(1, 2) for part in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    return out.transpose(1, 2).flatten(2).transpose(1, 2).reshape(n, 8, h, w)


@pytest.mark.parametrize(("dead", "read"), [([12, 13], [*range(4, 8), 10, 11, 14, 15]), ([10], [4, 5, 6, 7, 8, 9, 11])])
def test_grouped_queries(dead: list[int], read: list[int]) -> None:
    model = tiny(grouped, dead=dead, width=16, head=8)
    rows = chosen(analysed(model).layers[0][1].rows)
    expected = read if 12 in dead else [0, 1, 2, 3, 5, 7, 8, 9, 11, 12, 13, 14, 15]
    assert rows == expected
    shrinks(model)
