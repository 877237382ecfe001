"""Batch statistics apart from the affine map, and their synchronised form."""

from typing import Any, Self

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import _functions as kernels
from torch.nn.modules.batchnorm import _BatchNorm


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

    def forward(self, input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        initialised = dist.is_available() and dist.is_initialized()
        group = (self.process_group or dist.group.WORLD) if initialised else None
        if not self.training or group is None or dist.get_world_size(group) == 1:
            return super().forward(input, weight, bias)
        momentum = self.advance()
        running = (self.running_mean, self.running_var) if self.track_running_stats else (None, None)
        if input.device.type != "cpu":
            given = (input, weight, bias, *running, self.eps, momentum, group, dist.get_world_size(group))
            output: Tensor = kernels.SyncBatchNorm.apply(*given)  # type: ignore[no-untyped-call]
            return output
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


class _Summed(torch.autograd.Function):
    """Sum over processes, with the gradient summed over processes as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _total(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _total(grads[0], ctx.group), None


def _total(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


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
