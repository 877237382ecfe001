"""Models written for other runtimes: ONNX files, checked against the model they came from."""

import contextlib
import logging
import os
import warnings
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from diffsparse.compaction.pipeline import Compacted
from diffsparse.compaction.verify import difference
from diffsparse.errors import SparsityError, require_module, require_number
from diffsparse.example import Example, map_tensors, tensors_in
from diffsparse.files import replacing
from diffsparse.undisturbed import undisturbed

TOLERANCE = 1e-3
OTHER_BATCH = 3


def export_onnx(
    model: nn.Module | Compacted[Any],
    example_inputs: Any,
    path: str | os.PathLike[str],
    *,
    tolerance: float = TOLERANCE,
) -> float:
    """Write `model` as ONNX with a dynamic batch, run it with onnxruntime and compare; needs the `onnx` extra.

    Args:
        model: any model, or what `compact` returned; it is exported in eval mode and left as it is.
        example_inputs: a tensor, a tuple of positional arguments or a dictionary of keyword arguments; the first
            dimension of every tensor, nested ones too, is the batch.
        path: the file to write; it appears, or replaces what was there, only after the comparison.
        tolerance: largest difference from PyTorch to accept, relative to the largest output.

    Returns:
        The largest relative difference seen, over the example and a batch of another size.

    Raises:
        SparsityError: the model does not run on the example or on another batch, cannot be exported, the exported
            graph differs, or the file cannot be written.
    """
    try:
        import onnxruntime
    except ImportError:
        raise SparsityError("exporting needs onnx; install it with: pip install 'diffsparse[onnx]'") from None
    model = require_module("model", model.model if isinstance(model, Compacted) else model)
    require_number("tolerance", tolerance, low=0)
    example = Example.of(example_inputs)
    with replacing(path) as file, undisturbed(model, device=example.device):
        answers = _answers(model, example)
        # the exporter would take a batch of one for a constant
        single = {tensor.shape[0] for tensor in example.tensors if tensor.dim() > 0} == {1}
        graph = _export(model, _resized(example, 2) if single else example)
        try:
            session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        except Exception as error:
            # the errors of onnxruntime have no common base class
            raise SparsityError(f"onnxruntime does not take the exported graph: {_first_lines(error)}") from error
        worst = max(_difference(session, trial, answer) for trial, answer in answers)
        if not worst <= tolerance:
            raise SparsityError(f"the ONNX graph differs from the model by {worst:.3g}, more than {tolerance:g}")
        file.write(graph)
    return worst


def _answers(model: nn.Module, example: Example) -> list[tuple[Example, list[Tensor]]]:
    """The example and one with another batch size, each with the model's output for it."""
    other, own = _resized(example, OTHER_BATCH), _answer(model, example)
    try:
        return [(example, own), (other, _answer(model, other))]
    except SparsityError as error:
        raise SparsityError(f"the batch must be free to change, but {error}") from error


def _answer(model: nn.Module, example: Example) -> list[Tensor]:
    # a model may write to what it is given
    return [tensor.cpu() for tensor in tensors_in(Example.of(example.inputs).run(model))]


def _export(model: nn.Module, example: Example) -> bytes:
    def dynamic(arg: Any) -> dict[int, Any] | None:
        return {0: torch.export.Dim.DYNAMIC} if isinstance(arg, Tensor) and arg.dim() > 0 else None

    # the exporter warns and logs about its own internals, not about the model
    log = logging.getLogger("torch.onnx._internal.exporter")
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore")
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.ERROR)
        try:
            program = torch.onnx.export(
                model,
                example.args,
                kwargs=example.kwargs or None,
                dynamic_shapes=tree_map(dynamic, example.inputs),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        except Exception as error:
            # the exporter raises errors of its own around those of torch.export and of the user's code
            problem = _first_lines(error.__cause__ or error)
            fixed = "static shape" in problem or "Constraints violated" in problem
            hint = "its batch must be free to change, but the code of the model fixes it: " if fixed else ""
            raise SparsityError(f"{type(model).__name__} cannot be exported to ONNX: {hint}{problem}") from error
    assert program is not None
    return cast(bytes, program.model_proto.SerializeToString())


def _first_lines(error: BaseException) -> str:
    """What happened, without the advice and the traces below; a line that ends with a colon goes on in the next."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


def _resized(example: Example, batch: int) -> Example:
    """The example with its first entry repeated to another batch size."""

    def resize(tensor: Tensor) -> Tensor:
        return tensor[:1].expand(batch, *tensor.shape[1:]).clone() if tensor.dim() > 0 else tensor

    return Example(args=map_tensors(resize, example.args), kwargs=map_tensors(resize, example.kwargs))


def _difference(session: Any, example: Example, answer: list[Tensor]) -> float:
    names = [entry.name for entry in session.get_inputs()]
    try:
        feeds = dict(zip(names, (tensor.cpu().numpy() for tensor in example.tensors), strict=True))
        got = [torch.from_numpy(array) for array in session.run(None, feeds)]
    except Exception as error:
        raise SparsityError(f"onnxruntime does not run the graph on ({example}): {_first_lines(error)}") from error
    return difference(answer, got)
