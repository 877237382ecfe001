"""Batch statistics apart from the affine map, and their synchronised form for CPU processes."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.nn import functional as differentiable
from torch.nn.modules.batchnorm import _BatchNorm


class BatchStatistics(_BatchNorm):
    """Running statistics of a batch norm whose scale and shift come from outside.

    It is a batch norm to PyTorch, so that `SyncBatchNorm.convert_sync_batchnorm`, `update_bn` and loops that freeze
    or reset batch norms find it.
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

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions; the layer around this one checks."""

    def forward(self, input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        momentum = advance(self)
        track = self.track_running_stats or not self.training
        return F.batch_norm(
            input,
            self.running_mean if track else None,
            self.running_var if track else None,
            weight,
            bias,
            uses_batch(self),
            momentum,
            self.eps,
        )


def uses_batch(statistics: _BatchNorm) -> bool:
    """Whether the batch at hand is normalised by its own statistics."""
    return statistics.training or (statistics.running_mean is None and statistics.running_var is None)


def advance(statistics: _BatchNorm) -> float:
    """Count a training batch; return the share of it that goes into the running statistics."""
    if statistics.training and statistics.track_running_stats and statistics.num_batches_tracked is not None:
        statistics.num_batches_tracked.add_(1)
        if statistics.momentum is None:
            return 1.0 / float(statistics.num_batches_tracked)
    return 0.0 if statistics.momentum is None else statistics.momentum


def synchronised(statistics: nn.SyncBatchNorm, input: Tensor) -> Tensor:
    """`input` normalised by the statistics of all processes.

    PyTorch's own kernels where they exist; on CPU, which they refuse, the same mathematics with gloo.
    """
    group = statistics.process_group or (dist.group.WORLD if dist.is_available() and dist.is_initialized() else None)
    several = group is not None and dist.get_world_size(group) > 1
    if not statistics.training or not several or input.device.type != "cpu":
        normalised: Tensor = statistics(input)
        return normalised
    mean, var, count = _global_moments(input, group)
    if statistics.track_running_stats and statistics.running_mean is not None and statistics.running_var is not None:
        momentum = advance(statistics)
        unbiased = var.detach() * (count / (count - 1).clamp_min(1))
        statistics.running_mean.lerp_(mean.detach().to(statistics.running_mean.dtype), momentum)
        statistics.running_var.lerp_(unbiased.to(statistics.running_var.dtype), momentum)
    shape = (1, -1, *[1] * (input.dim() - 2))
    return (input - mean.to(input.dtype).view(shape)) * (var + statistics.eps).rsqrt().to(input.dtype).view(shape)


def _summed(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Sum over processes, with the gradient summed over processes as well."""
    total: Tensor = differentiable.all_reduce(x, group=group)  # type: ignore[no-untyped-call]
    return total


def _global_moments(input: Tensor, group: dist.ProcessGroup | None) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and count of every channel over all processes, differentiable."""
    dims = [0, *range(2, input.dim())]
    x = input.to(torch.promote_types(input.dtype, torch.float32))
    count = x.new_tensor(float(input.numel() // input.shape[1]))
    dist.all_reduce(count, group=group)
    mean = _summed(x.sum(dims), group) / count
    centred = x - mean.view(1, -1, *[1] * (input.dim() - 2))
    var = _summed(centred.square().sum(dims), group) / count
    return mean, var, count
