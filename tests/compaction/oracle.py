"""An oracle for live channels that shares nothing with the analysis: it looks at activations and gradients."""

from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from diffsparse.example import tensors_in


def _never_off(model: nn.Module) -> None:
    for module in model.modules():
        for key, child in module.named_children():
            if isinstance(child, nn.ReLU | nn.ReLU6 | nn.Hardswish):
                setattr(module, key, nn.LeakyReLU(0.5))


def live_macs(model: nn.Module, draw: Any, draws: int = 3) -> tuple[int, int]:
    """MACs over live pairs of channels, and over all pairs, for one example.

    An input channel is live if it varies between random inputs, an output channel if the gradient of a random
    projection of the model's outputs reaches it. Activations that switch off (ReLU) are replaced by leaky ones first:
    what the data at hand happens to switch off is not dead. Each layer must be called once. Changes the model.
    """
    layers = {m: name for name, m in model.named_modules() if isinstance(m, _ConvNd | nn.Linear)}
    varies: dict[nn.Module, torch.Tensor] = {}
    reached: dict[nn.Module, torch.Tensor] = {}
    first: dict[nn.Module, torch.Tensor] = {}
    pixels: dict[nn.Module, int] = {}

    def watch(module: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        dim = -1 if isinstance(module, nn.Linear) else 1
        rows = args[0].detach().movedim(dim, 0).flatten(1)
        seen = (rows != rows[:, :1]).any(1)
        if module in first:
            seen |= (rows[:, 0] - first[module]).abs() > 0
        first[module] = rows[:, 0].clone()
        varies[module] = varies.get(module, torch.zeros_like(seen)) | seen
        over = args[0] if isinstance(module, _ConvTransposeNd) else output
        pixels[module] = over.numel() // over.shape[dim]

        def reach(grad: torch.Tensor) -> None:
            hit = (grad.movedim(dim, 0).flatten(1) != 0).any(1)
            reached[module] = reached.get(module, torch.zeros_like(hit)) | hit

        if output.requires_grad:
            output.register_hook(reach)

    _never_off(model)
    handles = [module.register_forward_hook(watch) for module in layers]
    model.eval()
    for seed in range(draws):
        torch.manual_seed(seed)
        inputs = draw()
        outputs = [t for t in tensors_in(model(**inputs)) if t.requires_grad]
        sum((t * torch.randn_like(t)).sum() for t in outputs).backward()
    for handle in handles:
        handle.remove()
    live = whole = 0
    for module in pixels:
        groups = getattr(module, "groups", 1)
        kernel = module.weight[0, 0].numel()
        inputs = varies[module].view(groups, -1)
        if module not in reached:
            outputs = torch.zeros(groups, 1, dtype=torch.bool)
        else:
            outputs = reached[module].view(groups, -1)
        live += int((inputs.sum(1) * outputs.sum(1)).sum()) * kernel * pixels[module]
        whole += module.weight.numel() * pixels[module]
    return live, whole
