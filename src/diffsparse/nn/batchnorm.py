"""Sparse batch normalisation (Eq. 17): an ordinary batch norm whose scale is a gate."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from diffsparse.errors import SparsityError, require_whole
from diffsparse.gates import SignedGate, Source
from diffsparse.gates.gate import require_own_forward
from diffsparse.nn.statistics import BatchStatistics, SyncStatistics


def _of_statistics(name: str) -> Any:
    """A property that the statistics of the layer hold."""
    return property(lambda self: getattr(self.statistics, name), lambda self, new: setattr(self.statistics, name, new))


class SparseBatchNorm(nn.Module):
    r"""Batch norm with a gated scale, for input (N, C, ...) of any number of dimensions (Eq. 17).

    .. math:: y_i = a_i\,(\tilde x_i + b_i), \qquad \tilde x_i = \frac{x_i - \mu_i}{\sqrt{\sigma_i^2 + \epsilon}}

    `a` is a `SignedGate`. Where it is zero the whole channel is exactly zero, shift included, and `bias` (b; an
    ordinary batch norm has the shift a * b) gets no gradient.

    Args:
        num_features, eps, momentum, affine, track_running_stats: as for `nn.BatchNorm2d`. Without `affine` there is no
            `bias`; the gate is always there.
        value: what every gate starts at; not 0.
        rgf: `elu_alpha` of rectified gradient flow, or None.

    There is no `weight`: the scale is `gate()`. `torch.jit.script` does not take it.
    `SyncBatchNorm.convert_sync_batchnorm(model)` makes the statistics global under DDP, on GPUs and on CPU.

    Example:
        >>> SparseBatchNorm2d(8)(torch.randn(4, 8, 5, 5)).shape
        torch.Size([4, 8, 5, 5])
    """

    input_dims: ClassVar[tuple[int, ...] | None] = None
    ordinary: ClassVar[type[_BatchNorm]] = nn.SyncBatchNorm
    gate: SignedGate
    statistics: BatchStatistics
    num_features: int = _of_statistics("num_features")
    eps: float = _of_statistics("eps")
    momentum: float | None = _of_statistics("momentum")
    track_running_stats: bool = _of_statistics("track_running_stats")
    running_mean: Tensor | None = _of_statistics("running_mean")
    running_var: Tensor | None = _of_statistics("running_var")
    num_batches_tracked: Tensor | None = _of_statistics("num_batches_tracked")
    bias: nn.Parameter | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        value: float = 0.5,
        rgf: float | None = None,
    ) -> None:
        super().__init__()
        require_whole("num_features", num_features, low=1)
        self.gate = SignedGate(num_features, value=value, rgf=rgf, device=device, dtype=dtype)
        self.statistics = BatchStatistics(num_features, eps, momentum, track_running_stats, device, dtype)
        bias = nn.Parameter(torch.zeros(num_features, device=device, dtype=dtype)) if affine else None
        self.register_parameter("bias", bias)

    def scale_and_shift(self) -> tuple[Tensor, Tensor | None]:
        """Weight a and bias a * b of the ordinary batch norm that computes the same."""
        scale = self.gate()
        return scale, None if self.bias is None else scale * self.bias

    def forward(self, input: Tensor) -> Tensor:
        self._check_input(input)
        scale, shift = self.scale_and_shift()
        dtype = scale.dtype if self.statistics.running_mean is None else self.statistics.running_mean.dtype
        normalised: Tensor = self.statistics(input, scale.to(dtype), None if shift is None else shift.to(dtype))
        return normalised

    def materialise(self) -> nn.Module:
        """The batch norm of PyTorch with weight a and bias a * b. Without `affine` its bias is zero and frozen."""
        require_own_forward(self, SparseBatchNorm)
        scale, shift = self.scale_and_shift()
        of, own = self.statistics, self.bias
        like = own if own is not None else of.running_mean if of.running_mean is not None else scale
        weight = nn.Parameter(scale.to(like, copy=True), requires_grad=self.gate.alpha.requires_grad)
        trained = own is not None and own.requires_grad
        bias = nn.Parameter(torch.zeros_like(weight) if shift is None else shift.to(like), requires_grad=trained)
        # without tensors of its own at first: they would be drawn and thrown away
        norm = self.ordinary(of.num_features, of.eps, of.momentum, False, False)
        vars(norm).update(affine=True, track_running_stats=of.track_running_stats, training=self.training)
        norm._parameters.update(weight=weight, bias=bias)
        norm._buffers.update({key: None if held is None else held.clone() for key, held in of._buffers.items()})
        return norm

    def parameter_sources(self) -> dict[str, Source]:
        """Scale and shift are trained directly from now on, so they start with fresh state."""
        return {"weight": Source("gate.alpha")} | ({} if self.bias is None else {"bias": Source("bias")})

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """As usual; `convert_sync_batchnorm` hands its result over here."""
        super().add_module(name, SyncStatistics.of(module) if isinstance(module, nn.SyncBatchNorm) else module)

    def _check_input(self, input: Tensor) -> None:
        allowed, expected = self.input_dims, ""
        if input.dim() < 2 or (allowed is not None and input.dim() not in allowed):
            expected = f"{'at least 2' if allowed is None else ' or '.join(map(str, allowed))} dimensions"
        elif input.shape[1] != self.num_features:
            expected = f"{self.num_features} channels in dimension 1"
        if expected:
            raise SparsityError(f"{type(self).__name__} expects {expected}, got shape {tuple(input.shape)}")

    def reset_running_stats(self) -> None:
        self.statistics.reset_running_stats()

    def reset_parameters(self) -> None:
        """Fresh statistics, every gate at the constructor's `value`, every b at zero."""
        self.reset_running_stats()
        self.gate.reset_parameters()
        if self.bias is not None:
            self.bias.detach().zero_()

    def extra_repr(self) -> str:
        return f"{self.num_features}, affine={self.affine}"

    @property
    def affine(self) -> bool:
        return self.bias is not None


class SparseBatchNorm1d(SparseBatchNorm):
    """`nn.BatchNorm1d` with a gated scale, for input (N, C) or (N, C, L); see `SparseBatchNorm`."""

    input_dims, ordinary = (2, 3), nn.BatchNorm1d


class SparseBatchNorm2d(SparseBatchNorm):
    """`nn.BatchNorm2d` with a gated scale, for input (N, C, H, W); see `SparseBatchNorm`."""

    input_dims, ordinary = (4,), nn.BatchNorm2d


class SparseBatchNorm3d(SparseBatchNorm):
    """`nn.BatchNorm3d` with a gated scale, for input (N, C, D, H, W); see `SparseBatchNorm`."""

    input_dims, ordinary = (5,), nn.BatchNorm3d
