"""Models written for other runtimes: ONNX files, checked against the model they came from."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from diffsparse.compaction.pipeline import Compacted
from diffsparse.compaction.verify import difference
from diffsparse.errors import SparsityError, require_module, require_number, require_whole
from diffsparse.example import Example, map_tensors, tensors_in
from diffsparse.files import replacing
from diffsparse.measuring.onnx_graph import feeds_of, first_lines, named, onnx_graph, onnxruntime, session_of
from diffsparse.undisturbed import undisturbed

TOLERANCE = 1e-3
OTHER_BATCH, LONGER = 3, 3


def export_onnx(
    model: nn.Module | Compacted[Any],
    example_inputs: Any,
    path: str | os.PathLike[str],
    *,
    tolerance: float = TOLERANCE,
    dynamic: Sequence[int] | Mapping[int, str] = (0,),
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset: int | None = None,
) -> float:
    """Write `model` as ONNX with a dynamic batch, run it with onnxruntime and compare; needs the `onnx` extra.

    Args:
        model: any model, or what `compact` returned; it is exported in eval mode and left as it is.
        example_inputs: a tensor, a tuple of positional arguments or a dictionary of keyword arguments; the first
            dimension of every tensor, nested ones too, is the batch.
        path: the file to write; it appears, or replaces what was there, only after the comparison.
        tolerance: largest difference from PyTorch to accept, relative to the largest output.
        dynamic: dimensions of each input that are free to change; `(0, 1)` for sequences of any length. A mapping gives
            them names in the file, such as `{0: "batch", 1: "length"}`; the batch alone is called "batch" in any case.
        input_names: one name per input tensor in the file; by default those of the arguments of `forward`.
        output_names: one name per output tensor; by default "output", or "output_0", "output_1" and so on.
        opset: version of the ONNX operators; by default that of the exporter of PyTorch.

    Returns:
        The largest relative difference seen, over the example and an input of another size.

    Raises:
        SparsityError: the model does not run on the example or on another batch, cannot be exported, the exported
            graph differs, or the file cannot be written.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/net.onnx"
        >>> export_onnx(nn.Linear(4, 2), torch.randn(1, 4), path, input_names=["features"]) < 1e-5
        True
    """
    onnxruntime()
    model = require_module("model", model.model if isinstance(model, Compacted) else model)
    require_number("tolerance", tolerance, low=0)
    free = _free(dynamic)
    example = Example.of(example_inputs)
    with replacing(path) as file, undisturbed(model, device=example.device):
        answers = _answers(model, example, list(free))
        inputs = _names("input_names", input_names, len(example.tensors))
        count = len(answers[0][1])
        outputs = _names("output_names", output_names, count) or _default_names(count)
        # the exporter would take a size of one for a constant
        shown = _resized(example, {dim: 2 for dim in free if _sizes(example, dim) == {1}})
        names = {"input_names": inputs, "output_names": outputs}
        graph = onnx_graph(model, shown, free, opset_version=opset, **names)
        session = session_of(graph)
        worst = max(_difference(session, trial, answer) for trial, answer in answers)
        if not worst <= tolerance:
            raise SparsityError(f"the ONNX graph differs from the model by {worst:.3g}, more than {tolerance:g}")
        file.write(graph)
    return worst


def _free(dynamic: Sequence[int] | Mapping[int, str]) -> dict[int, str | None]:
    """Dimensions that are free to change, each with its name in the file if it has one."""
    named = dict(dynamic) if isinstance(dynamic, Mapping) else {dim: "batch" if dim == 0 else None for dim in dynamic}
    return {require_whole("an entry of dynamic", dim, low=0): name for dim, name in named.items()}


def _names(option: str, names: Sequence[str] | None, count: int) -> list[str] | None:
    if names is not None and (isinstance(names, str) or len(names) != count or len(set(names)) != count):
        raise SparsityError(f"{option} must be {count} different names, one per tensor, got {names!r}")
    return None if names is None else list(names)


def _default_names(count: int) -> list[str]:
    return ["output"] if count == 1 else [f"output_{number}" for number in range(count)]


def _answers(model: nn.Module, example: Example, free: list[int]) -> list[tuple[Example, list[Tensor]]]:
    """The example and one of another size, each with the model's output for it."""
    sizes = {dim: max(_sizes(example, dim), default=0) + LONGER if dim else OTHER_BATCH for dim in free}
    other, own = _resized(example, sizes), _answer(model, example)
    try:
        return [(example, own), (other, _answer(model, other))]
    except SparsityError as error:
        raise SparsityError(f"the {named(free)} must be free to change, but {error}") from error


def _sizes(example: Example, dim: int) -> set[int]:
    return {tensor.shape[dim] for tensor in example.tensors if tensor.dim() > dim}


def _answer(model: nn.Module, example: Example) -> list[Tensor]:
    # a model may write to what it is given
    answer = Example.of(example.inputs).run(model)
    parts = answer.values() if isinstance(answer, Mapping) else answer if isinstance(answer, tuple | list) else [answer]
    if numbers := [part for part in parts if isinstance(part, int | float)]:
        words = f"{type(model).__name__} returns {numbers[0]!r}, and an ONNX file gives tensors only"
        raise SparsityError(f"{words}; return it as a tensor, or export a module that leaves it out")
    return [tensor.cpu() for tensor in tensors_in(answer)]


def _resized(example: Example, sizes: dict[int, int]) -> Example:
    """The example with other sizes along these dimensions: its first entries, again and again."""

    def resize(tensor: Tensor) -> Tensor:
        for dim, size in sizes.items():
            if dim < tensor.dim():
                # a batch repeats its first sample
                step = 1 if dim == 0 else tensor.shape[dim]
                tensor = tensor.index_select(dim, torch.arange(size, device=tensor.device) % step)
        return tensor

    return Example(args=map_tensors(resize, example.args), kwargs=map_tensors(resize, example.kwargs))


def _difference(session: Any, example: Example, answer: list[Tensor]) -> float:
    try:
        got = [torch.from_numpy(array) for array in session.run(None, feeds_of(session, example))]
    except Exception as error:
        raise SparsityError(f"onnxruntime does not run the graph on ({example}): {first_lines(error)}") from error
    return difference(answer, got)
