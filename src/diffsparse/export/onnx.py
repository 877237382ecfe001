"""ONNX files, checked against the model they came from."""

import contextlib
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.compact.capture import tensors_in
from diffsparse.compact.verify import difference
from diffsparse.errors import SparsityError
from diffsparse.measure.example import Example

TOLERANCE = 1e-3


def export_onnx(model: nn.Module, example_inputs: Any, path: str | Path, *, tolerance: float = TOLERANCE) -> float:
    """Write `model` as ONNX with a dynamic batch, run it with onnxruntime and compare.

    Args:
        model: usually the model of a `Compacted`; it is exported in eval mode and left as it is.
        example_inputs: a tensor, a tuple of positional arguments or a dictionary of keyword arguments; the first
            dimension of every tensor is the batch.
        path: the file to write.
        tolerance: largest difference from PyTorch to accept, relative to the largest output.

    Returns:
        The largest relative difference seen, over the example and a batch of another size.

    Needs the `onnx` extra. If the exported graph differs, no file is left behind.
    """
    try:
        import onnxruntime
    except ImportError:
        raise SparsityError("exporting needs onnx; install it with: pip install 'diffsparse[onnx]'") from None
    path = Path(path)
    if not path.absolute().parent.is_dir():
        raise SparsityError(f"the folder of {path} does not exist")
    example = Example.of(example_inputs)
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        _export(model, _two_at_least(example), path)
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        worst = max(_difference(model, session, _resized(example, batch)) for batch in (None, 3))
    finally:
        for module, flag in training.items():
            module.training = flag
    if not worst <= tolerance:
        path.unlink()
        raise SparsityError(f"the ONNX graph differs from the model by {worst:.3g}, more than {tolerance:g}")
    return worst


def _export(model: nn.Module, example: Example, path: Path) -> None:
    batch = torch.export.Dim.DYNAMIC
    dynamic = tuple({0: batch} if isinstance(arg, Tensor) else None for arg in example.args)
    dynamic_kwargs = {key: {0: batch} if isinstance(arg, Tensor) else None for key, arg in example.kwargs.items()}
    # the exporter warns and logs of its own internals, not of the model
    log = logging.getLogger("torch.onnx._internal.exporter")
    level = log.level
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore")
        stack.callback(log.setLevel, level)
        log.setLevel(logging.ERROR)
        torch.onnx.export(
            model,
            example.args,
            str(path),
            kwargs=example.kwargs or None,
            dynamic_shapes=dynamic_kwargs if example.kwargs else dynamic,
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def _two_at_least(example: Example) -> Example:
    """A batch of one would be taken for a constant."""
    sizes = {tensor.shape[0] for tensor in example.tensors if tensor.dim() > 0}
    return _resized(example, 2) if sizes == {1} else example


def _resized(example: Example, batch: int | None) -> Example:
    """The example with another batch, made of its first entry."""

    if batch is None:
        return example
    copies = batch

    def resize(arg: Any) -> Any:
        return arg[:1].expand(copies, *arg.shape[1:]).clone() if isinstance(arg, Tensor) and arg.dim() > 0 else arg

    kwargs = {key: resize(arg) for key, arg in example.kwargs.items()}
    return Example(args=tuple(map(resize, example.args)), kwargs=kwargs)


@torch.no_grad()
def _difference(model: nn.Module, session: Any, example: Example) -> float:
    names = [entry.name for entry in session.get_inputs()]
    feeds = dict(zip(names, (tensor.cpu().numpy() for tensor in example.tensors), strict=True))
    got = [torch.from_numpy(array) for array in session.run(None, feeds)]
    return difference([t.cpu() for t in tensors_in(example.run(model))], got)
