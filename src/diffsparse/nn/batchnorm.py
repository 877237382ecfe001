"""Sparse batch normalisation (Eq. 17): an ordinary batch norm whose scale is a gate."""

from typing import Any, ClassVar, Self, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import _functions as kernels
from torch.nn.modules.batchnorm import _BatchNorm

from diffsparse.errors import SparsityError, require_whole
from diffsparse.gates import SignedGate, Source
from diffsparse.gates.gate import require_own_forward


class BatchStatistics(_BatchNorm):
    """Running statistics of a batch norm whose scale and shift come from outside.

    PyTorch sees a batch norm: `SyncBatchNorm.convert_sync_batchnorm`, `update_bn` and loops that call `.eval()` on
    batch norms or reset their statistics find it. It has no weight and no bias to freeze.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, False, track_running_stats, device=device, dtype=dtype)

    @classmethod
    def of(cls, norm: _BatchNorm) -> Self:
        """The statistics of `norm`: the very same buffers, without the affine map."""
        return cls._with_buffers_of(norm)

    def taken_from(self, norm: _BatchNorm) -> Self:
        """Statistics like these, of whatever kind they are, with the very same buffers as `norm`."""
        return self._with_buffers_of(norm)

    @classmethod
    def _with_buffers_of(cls, norm: _BatchNorm) -> Self:
        statistics = cls(norm.num_features, norm.eps, norm.momentum, norm.track_running_stats)
        statistics._buffers.update(norm._buffers)
        return statistics.train(norm.training)

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions; the layer around this one checks."""

    def forward(self, input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        momentum = self.advance()
        track = self.track_running_stats or not self.training
        mean, var = (self.running_mean, self.running_var) if track else (None, None)
        return F.batch_norm(input, mean, var, weight, bias, self.uses_batch(), momentum, self.eps)

    def uses_batch(self) -> bool:
        """Whether the batch at hand is normalised by its own statistics."""
        return self.training or (self.running_mean is None and self.running_var is None)

    def advance(self) -> float:
        """Count a training batch; return the share of it that goes into the running statistics."""
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                return 1.0 / float(self.num_batches_tracked)
        return 0.0 if self.momentum is None else self.momentum


class SyncStatistics(BatchStatistics):
    """Batch statistics over all processes: PyTorch's own kernels on GPUs, the same mathematics with gloo on CPU.

    What `SyncBatchNorm.convert_sync_batchnorm` makes of a `BatchStatistics` becomes one of these, because DDP refuses
    an `nn.SyncBatchNorm` in a model on CPU.
    """

    process_group: dist.ProcessGroup | None = None

    @classmethod
    def of(cls, norm: _BatchNorm) -> Self:
        assert isinstance(norm, nn.SyncBatchNorm)
        statistics = super().of(norm)
        statistics.process_group = norm.process_group
        return statistics

    def taken_from(self, norm: _BatchNorm) -> Self:
        statistics = super().taken_from(norm)
        statistics.process_group = self.process_group
        return statistics

    def forward(self, input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        initialised = dist.is_available() and dist.is_initialized()
        group = (self.process_group or dist.group.WORLD) if initialised else None
        if not self.training or group is None or dist.get_world_size(group) == 1:
            return super().forward(input, weight, bias)
        momentum = self.advance()
        running = (self.running_mean, self.running_var) if self.track_running_stats else (None, None)
        if input.device.type != "cpu":
            given = (input, weight, bias, *running, self.eps, momentum, group, dist.get_world_size(group))
            return cast(Tensor, kernels.SyncBatchNorm.apply(*given))  # type: ignore[no-untyped-call]
        mean, var, count = _global_moments(input, group)
        running_mean, running_var = running
        if running_mean is not None and running_var is not None:
            unbiased = var.detach() * (count / (count - 1).clamp_min(1))
            running_mean.lerp_(mean.detach().to(running_mean.dtype), momentum)
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
        shape = (1, -1, *[1] * (input.dim() - 2))
        scale = (var + self.eps).rsqrt() if weight is None else weight * (var + self.eps).rsqrt()
        output = (input - mean.view(shape)) * scale.view(shape)
        return (output if bias is None else output + bias.view(shape)).to(input.dtype)


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
        if not isinstance(self, SparseBatchNorm):  # it has become an ordinary layer, and somebody kept this method
            return type(self).forward(self, input)
        self._check_input(input)
        scale, shift = self.scale_and_shift()
        dtype = scale.dtype if self.statistics.running_mean is None else self.statistics.running_mean.dtype
        return cast(Tensor, self.statistics(input, scale.to(dtype), None if shift is None else shift.to(dtype)))

    def materialise(self) -> nn.Module:
        """The batch norm of PyTorch with weight a and bias a * b. Without `affine` its bias is zero and frozen."""
        require_own_forward(self, SparseBatchNorm)
        scale, shift = self.scale_and_shift()
        of, own = self.statistics, self.bias
        like = own if own is not None else of.running_mean if of.running_mean is not None else scale
        weight = nn.Parameter(scale.to(like, copy=True), requires_grad=self.gate.alpha.requires_grad)
        trained = own is not None and own.requires_grad
        bias = nn.Parameter(torch.zeros_like(weight) if shift is None else shift.to(like), requires_grad=trained)
        # PyTorch's own synchronised batch norm is for GPUs only
        synchronised = isinstance(of, SyncStatistics) and like.device.type == "cuda"
        # without tensors of its own at first: they would be drawn and thrown away
        norm = (nn.SyncBatchNorm if synchronised else self.ordinary)(of.num_features, of.eps, of.momentum, False, False)
        vars(norm).update(affine=True, track_running_stats=of.track_running_stats, training=self.training)
        if synchronised:
            norm.process_group = of.process_group
        norm._parameters.update(weight=weight, bias=bias)
        norm._buffers.update({key: None if held is None else held.clone() for key, held in of._buffers.items()})
        return norm

    @torch.no_grad()
    def regated(self, ordinary: nn.Module, kept: Tensor) -> nn.Module:
        """The sparse form of `ordinary`, what is left of the ordinary form of this layer: the channels `kept`."""
        assert isinstance(ordinary, _BatchNorm)
        new = type(self)(len(kept), affine=self.bias is not None)
        new.gate = self.gate.regated(ordinary, kept)
        new.statistics = self.statistics.taken_from(ordinary)
        if self.bias is not None:
            scale, bias = new.gate(), self.bias.index_select(0, kept)
            # compaction may have added to the shift
            moved = ordinary.bias - (scale * bias).to(ordinary.bias)
            bias = torch.where(moved == 0, bias, bias + (moved / scale).nan_to_num(0.0, 0.0, 0.0).to(bias))
            new.bias = nn.Parameter(bias, requires_grad=self.bias.requires_grad)
        return new.train(ordinary.training)

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


class _Summed(torch.autograd.Function):
    """Sum over processes; the gradient is summed over processes as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Summed.forward(ctx, grads[0], ctx.group), None


def _global_moments(input: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and count of every channel over all processes, differentiable."""
    dims = [0, *range(2, input.dim())]
    x = input.to(torch.promote_types(input.dtype, torch.float32))
    count = x.new_tensor(float(input.numel() // input.shape[1]))
    dist.all_reduce(count, group=group)
    mean = _Summed.apply(x.sum(dims), group) / count  # type: ignore[no-untyped-call]
    centred = x - mean.view(1, -1, *[1] * (input.dim() - 2))
    var = _Summed.apply(centred.square().sum(dims), group) / count  # type: ignore[no-untyped-call]
    return mean, var, count
