"""What dies: half of the channels of each batch norm, some batch norms as a whole, hidden units and stored scales."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from diffsparse.example import tensors_in

# the two layers of a feed-forward block, by the names that libraries give them
_FIRST = {
    "dense1",
    "c_fc",
    "fc1",
    "lin1",
    "wi",
    "wi_0",
    "wi_1",
    "gate_proj",
    "up_proj",
    "pwconv1",
    "linear1",
    "intermediate_dense",
}
_SECOND = {"dense2", "c_proj", "fc2", "lin2", "wo", "down_proj", "pwconv2", "linear2", "output_dense"}
_SCALES = ("layer_scale", "gamma", "lambda1")


@torch.no_grad()
def kill(model: nn.Module, run: Callable[[int], Any], *, shifts: bool, whole: bool, seed: int = 0) -> None:
    """Fill the model with random numbers and zeros, by a seed.

    Args:
        model: in eval mode.
        run: runs it on the inputs of a seed.
        shifts: whether half of the layers emit a constant where they are dead; otherwise all emit zero, as gates do.
        whole: whether some batch norms die as a whole.
        seed: of the numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, module in model.named_modules():
        _start(module, generator)
        _hidden(name, module, shifts, generator)
    norms = list(_norms(model))
    for norm in norms:
        _half(norm, shifts, generator)
    for scale in _scales(model):
        scale.copy_((0.5 + torch.rand(scale.shape, generator=generator)) * (_coins(scale, generator) < 0.7))
    if whole:
        _whole(norms, run, shifts, generator)


def _shifted(shifts: bool, generator: torch.Generator) -> bool:
    return bool(torch.rand((), generator=generator) < 0.5) and shifts


def _coins(tensor: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(tensor.shape, generator=generator)


def _start(module: nn.Module, generator: torch.Generator) -> None:
    """Weights that let signals pass: the configurations' own start makes them fade until rounding hides them."""
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    if isinstance(module, nn.Linear | _ConvNd) and weight is not None:
        spread = (2.0 / max(weight[0].numel(), 1)) ** 0.5
        weight.copy_(spread * torch.randn(weight.shape, generator=generator))
    if isinstance(module, nn.Linear | _ConvNd | nn.LayerNorm | nn.GroupNorm) and bias is not None:
        bias.copy_(0.1 * torch.randn(bias.shape, generator=generator))


def _hidden(name: str, module: nn.Module, shifts: bool, generator: torch.Generator) -> None:
    """Hidden units of feed-forward blocks: half of them get no input, half are not read."""
    weight, bias, place = module._parameters.get("weight"), module._parameters.get("bias"), _place(name)
    if weight is None and hasattr(module, "parametrizations"):
        # the lengths of the filters, if they are normalised
        weight = getattr(module.parametrizations.weight, "original0", None)
    if weight is None or weight.dim() < 2 or not place:
        return
    # the Conv1D of GPT-2 stores its weight the other way round
    rows = weight.data.t() if type(module).__name__ == "Conv1D" else weight.data
    if place == "first":
        dead = torch.rand(rows.shape[0], generator=generator) < 0.5
        rows[dead] = 0
        if bias is not None and not _shifted(shifts, generator):
            bias[dead] = 0
    else:
        rows[:, torch.rand(rows.shape[1], generator=generator) < 0.5] = 0


def _place(name: str) -> str:
    """Whether a module is the first or the second layer of a feed-forward block, by its name."""
    own = name.rpartition(".")[2]
    if own in _FIRST or name.endswith(("intermediate.dense", "block.1.conv")) or ".convs1." in name:
        return "first"
    written_out = name.endswith("output.dense") and not name.endswith("attention.output.dense")
    return "second" if own in _SECOND or written_out else ""


def _norms(model: nn.Module) -> Iterator[Any]:
    """Batch norms, and modules with the tensors of one."""
    for module in model.modules():
        if isinstance(module, _BatchNorm) or {"weight", "bias", "running_mean", "running_var"} <= set(module._buffers):
            yield module


def _half(norm: Any, shifts: bool, generator: torch.Generator) -> None:
    if norm.running_mean is not None:
        norm.running_mean.copy_(0.1 * torch.randn(norm.running_mean.shape, generator=generator))
        norm.running_var.copy_(0.5 + torch.rand(norm.running_var.shape, generator=generator))
    if norm.weight is None:
        return
    n = len(norm.weight)
    alive = torch.rand(n, generator=generator) < 0.5
    # a norm of one or two channels would often die as a whole
    alive[int(torch.randint(n, (1,), generator=generator))] = True
    norm.weight.copy_((0.5 + torch.rand(n, generator=generator)) * alive)
    norm.bias.copy_(0.1 * torch.randn(n, generator=generator) * (alive | _shifted(shifts, generator)))


def _scales(model: nn.Module) -> Iterator[Tensor]:
    """Stored vectors that outputs of a layer are multiplied with, and scales of layer and group norms."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            stored = any(part in name for part in _SCALES)
            if parameter is not None and stored and parameter.numel() > 1:
                yield parameter.data
        if isinstance(module, nn.LayerNorm | nn.GroupNorm) and module.weight is not None:
            yield module.weight.data


def _whole(norms: list[Any], run: Callable[[int], Any], shifts: bool, generator: torch.Generator) -> None:
    """About a tenth of the batch norms, at least one, as long as every output still depends on the input."""
    chosen = torch.randperm(len(norms), generator=generator).tolist()[: max(1, len(norms) // 10)]
    for norm in (norms[index] for index in chosen):
        if norm.weight is None:
            continue
        weight, bias = norm.weight.clone(), norm.bias.clone()
        norm.weight.zero_()
        if not _shifted(shifts, generator):
            norm.bias.zero_()
        if not _depends(run):
            norm.weight.copy_(weight)
            norm.bias.copy_(bias)


def _depends(run: Callable[[int], Any]) -> bool:
    return all(not torch.equal(a, b) for a, b in zip(tensors_in(run(0)), tensors_in(run(1)), strict=True))
