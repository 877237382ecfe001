"""`nn.MultiheadAttention` without its dead heads: a class that needs no width but that of its weights."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.compaction.actions import Action
from diffsparse.compaction.edit import ModelEdit
from diffsparse.compaction.tensor_slice import Indices, Widths

_HEADS, _SELECT = "head_index", ("select_query", "select_key", "select_value")


class SlimAttention(nn.MultiheadAttention):
    """What a `nn.MultiheadAttention` becomes: fewer heads, and weights only for inputs that matter.

    It is called as before and has the same parameters, with fewer rows and columns. `num_heads` counts the heads that
    are left, `all_heads` those that callers know: a mask may have one part for each. If heads are gone, weights of
    attention, which are a mean over all heads, are not returned.
    """

    sealed: ClassVar[bool] = True
    """Whether a recorder should leave the widths inside of it alone."""
    all_heads: int

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As that of `nn.MultiheadAttention`."""
        batched = query.dim() == 3
        given = [self._batch_first(x, batched) for x in (query, key, value)]
        if self.num_heads == 0:
            nothing = given[0].new_zeros(*given[0].shape[:2], 0)
            return self._as_called(self._projected(nothing), batched), None
        causal = is_causal and key_padding_mask is None and not need_weights
        q, k, v = self._heads(given)
        mask = self._mask(None if causal else attn_mask, key_padding_mask, q, k)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights and self.num_heads == self.all_heads:
            scores = q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)
            weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
            mixed = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if batched else weights.squeeze(0)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)
        return self._as_called(self._projected(mixed.transpose(1, 2).flatten(2)), batched), weights

    def _batch_first(self, x: Tensor, batched: bool) -> Tensor:
        if not batched:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _as_called(self, x: Tensor, batched: bool) -> Tensor:
        if not batched:
            return x.squeeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _projected(self, mixed: Tensor) -> Tensor:
        return F.linear(mixed, self.out_proj.weight, self.out_proj.bias)

    def _heads(self, given: list[Tensor]) -> list[Tensor]:
        """Queries, keys and values, of shape (batch, heads, length, size of a head)."""
        packed = self.in_proj_weight
        separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights: Any = separate if packed is None else packed.chunk(3)
        biases: Any = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        extra = (None, self.bias_k, self.bias_v)
        made = []
        for at, (x, weight, bias, last) in enumerate(zip(given, weights, biases, extra, strict=True)):
            chosen = getattr(self, _SELECT[at])
            y = F.linear(x if chosen is None else x.index_select(-1, chosen), weight, bias)
            y = y if last is None else torch.cat([y, last.expand(len(y), 1, -1)], 1)
            y = y.view(*y.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)
            made.append(F.pad(y, (0, 0, 0, 1)) if at > 0 and self.add_zero_attn else y)
        return made

    def _mask(self, mask: Tensor | None, padding: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
        """What to add to the scores."""
        total = None
        if mask is not None:
            total = _added(mask, q)
            if total.dim() == 3:
                heads: Any = getattr(self, _HEADS)
                total = total.view(len(q), self.all_heads, *total.shape[1:]).index_select(1, heads)
        if padding is not None:
            padding = _added(padding, q).view(len(q), 1, 1, -1)
            total = padding if total is None else total + padding
        # keys that the module itself has added are seen by all
        return total if total is None else F.pad(total, (0, k.shape[-2] - total.shape[-1]))


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as numbers to add, with minus infinity where it is true."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, float("-inf"))


@dataclass(frozen=True, kw_only=True)
class CutHeads(Action):
    """A `nn.MultiheadAttention` loses heads, and weights for inputs that are zero."""

    tag: ClassVar = "heads"

    heads: Indices
    """Those that stay."""
    count: Widths
    """How many there were, and are."""
    columns: list[Indices | None]
    """Inputs that queries, keys and values are made of; None for all."""

    @property
    def share_of_products(self) -> Fraction:
        return Fraction(self.count[1], self.count[0])

    def apply(self, edit: ModelEdit, name: str) -> None:
        module: Any = edit.modules[name]
        like = edit.sample(name)
        if not isinstance(module, SlimAttention):
            # in place, so that hooks stay
            module.__class__ = SlimAttention
            module.all_heads = module.num_heads
            # torch's fused kernels take it for what it was otherwise
            module._qkv_same_embed_dim = False
            for key in (_HEADS, *_SELECT):
                module.register_buffer(key, None, persistent=False)
        for key, chosen in zip((_HEADS, *_SELECT), (self.heads, *self.columns), strict=True):
            before = getattr(module, key)
            if chosen is not None:
                index = edit.index(chosen, like.device)
                setattr(module, key, index if before is None else before[index])
        module.num_heads = self.count[1]
        for around in _around(edit, name):
            # nested tensors are for those kernels
            around.use_nested_tensor = False

    def __str__(self) -> str:
        parts = [f"heads {self.count[0]} -> {self.count[1]}"]
        kept = zip(("queries", "keys", "values"), self.columns, strict=True)
        return ", ".join(parts + [f"{name} from {len(chosen)}" for name, chosen in kept if chosen is not None])


def _around(edit: ModelEdit, name: str) -> list[Any]:
    """Encoders that hold the module."""
    while name:
        name = name.rpartition(".")[0]
        if isinstance(edit.modules[name], nn.TransformerEncoder):
            return [edit.modules[name]]
    return []
