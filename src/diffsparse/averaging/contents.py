"""What is averaged of a model, and whether two models fit."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from diffsparse.gates import Gate
from diffsparse.module_tree import modules_by_name, tensors_by_name
from diffsparse.penalties.penalty import batch_gates


class Contents:
    """What is averaged of a model: most tensors as they are, gates by their values, variances by their logarithms."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        # in the order of their names: that of registration may differ between a model and its average
        modules = dict(sorted(modules_by_name(model).items()))
        self.tensors = dict(sorted(tensors_by_name(modules_by_name(model)).items()))
        self.gates = {name: module for name, module in modules.items() if isinstance(module, Gate)}
        self.norms = {
            name: module
            for name, module in modules.items()
            if isinstance(module, _NormBase) and module.running_var is not None
        }
        special = {id(parameter) for gate in self.gates.values() for parameter in gate.parameters()}
        special |= {id(norm.running_var) for norm in self.norms.values()}
        rest = [tensor for tensor in self.tensors.values() if id(tensor) not in special]
        self.plain = [tensor for tensor in rest if _averaged(tensor)]
        self.whole = [tensor for tensor in rest if not _averaged(tensor)]
        self._names = {id(gate): name for name, gate in self.gates.items()}
        self._batches, self._single = batch_gates(list(self.gates.values()))

    def of_now(self, model: nn.Module) -> "Contents":
        """These contents if they still are those of `model`, else new ones: tensors may have become others."""
        tensors, known = tensors_by_name(modules_by_name(model)), self.tensors
        same = len(tensors) == len(known) and all(known.get(name) is tensor for name, tensor in tensors.items())
        return self if same else Contents(model)

    def derived(self) -> dict[str, Tensor]:
        """The values of each gate and the log of variance + eps of each norm, by the name of the module."""
        found = {self._names[id(gate)]: gate().detach() for gate in self._single}
        for batch in self._batches:
            found |= {self._names[id(gate)]: row for gate, row in zip(batch.gates, batch.values(), strict=True)}
        found = {name: found[name] for name in self.gates}
        variances = [cast(Tensor, norm.running_var) for norm in self.norms.values()]
        if variances:
            shifted = torch._foreach_add(variances, [norm.eps for norm in self.norms.values()])
            found |= dict(zip(self.norms, torch._foreach_log(shifted), strict=True))
        return found

    @torch.no_grad()
    def write(self, means: dict[str, Tensor]) -> None:
        """The inverse of `derived`."""
        for name, gate in self.gates.items():
            gate.set_values(means[name].to(gate.alpha.device))
        for name, norm in self.norms.items():
            cast(Tensor, norm.running_var).copy_((means[name].exp() - norm.eps).clamp_min(0))


def _averaged(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


Shapes = dict[str, tuple[int, ...]]


def shapes(tensors: dict[str, Tensor]) -> Shapes:
    """The shape of each tensor."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def difference(wanted: Shapes, given: Shapes) -> str:
    """The first difference between what an average has and what it was given, in words."""
    for name in {**wanted, **given}:
        if name not in given:
            return f"'{name}' is missing"
        if name not in wanted:
            return f"'{name}' is not in the average"
        if wanted[name] != given[name]:
            return f"'{name}' has shape {given[name]}, in the average {wanted[name]}"
    return "nothing differs"
