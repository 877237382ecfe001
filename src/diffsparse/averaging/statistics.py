"""The statistics of a network measured on batches."""

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from diffsparse.module_tree import modules_by_name


class Measuring:
    """While it is entered, `network` trains and these norms collect fresh statistics over all batches."""

    def __init__(self, network: nn.Module, norms: dict[str, _NormBase], frozen: set[str]) -> None:
        self._network, self._frozen = network, frozen
        self._norms = [norm for norm in norms.values() if norm.num_batches_tracked is not None]

    def __enter__(self) -> None:
        modules = modules_by_name(self._network)
        self._flags = {module: module.training for module in modules.values()}
        self._before = [(norm.momentum, {k: v.clone() for k, v in _buffers(norm).items()}) for norm in self._norms]
        self._network.train()
        for name in self._frozen:
            modules[name].eval()
        for norm in self._norms:
            norm.reset_running_stats()
            norm.momentum = None

    def __exit__(self, kind: object, *_: object) -> None:
        for norm, (momentum, before) in zip(self._norms, self._before, strict=True):
            norm.momentum = momentum
            buffers = _buffers(norm)
            if kind is None and bool(buffers["num_batches_tracked"]):
                before = {"num_batches_tracked": before["num_batches_tracked"]}
            for key, tensor in before.items():
                buffers[key].copy_(tensor)
        for module, flag in self._flags.items():
            module.training = flag


def _buffers(norm: _NormBase) -> dict[str, Tensor]:
    return {key: buffer for key, buffer in norm._buffers.items() if buffer is not None}
