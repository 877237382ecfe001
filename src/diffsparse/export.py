"""Models written for other runtimes: ONNX files, checked against the model they came from."""

import contextlib
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from diffsparse.compaction.pipeline import Compacted
from diffsparse.compaction.verify import difference
from diffsparse.errors import SparsityError, require_module, require_number, require_whole
from diffsparse.example import Example, map_tensors, tensors_in
from diffsparse.files import replacing
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
    try:
        import onnxruntime
    except ImportError:
        raise SparsityError("exporting needs onnx; install it with: pip install 'diffsparse[onnx]'") from None
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
        graph = _export(model, shown, free, opset_version=opset, **names)
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
        raise SparsityError(f"the {_named(free)} must be free to change, but {error}") from error


def _named(free: list[int]) -> str:
    """Dimensions that are free, in words."""
    return "batch" if free == [0] else f"dimensions {', '.join(map(str, free))}"


def _sizes(example: Example, dim: int) -> set[int]:
    return {tensor.shape[dim] for tensor in example.tensors if tensor.dim() > dim}


def _answer(model: nn.Module, example: Example) -> list[Tensor]:
    # a model may write to what it is given
    return [tensor.cpu() for tensor in tensors_in(Example.of(example.inputs).run(model))]


def _export(model: nn.Module, example: Example, free: dict[int, str | None], **options: Any) -> bytes:
    def dynamic(arg: Any) -> dict[int, Any] | None:
        dims = [dim for dim in free if isinstance(arg, Tensor) and dim < arg.dim()]
        return {dim: free[dim] or torch.export.Dim.DYNAMIC for dim in dims} if dims else None

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
                **options,
            )
        except Exception as error:
            # the exporter raises errors of its own around those of torch.export and of the user's code
            problem = _first_lines(error.__cause__ or error)
            fixed = "static shape" in problem or "Constraints violated" in problem
            hint = (
                f"its {_named(list(free))} must be free to change, but the code of the model fixes it: "
                if fixed
                else ""
            )
            raise SparsityError(f"{type(model).__name__} cannot be exported to ONNX: {hint}{problem}") from error
    assert program is not None
    proto = program.model_proto
    written, asked = proto.opset_import[0].version, options["opset_version"]
    if asked is not None and written != asked:
        raise SparsityError(
            f"PyTorch cannot write opset {asked}, only {written} or newer; leave opset out, or raise it"
        )
    return cast(bytes, proto.SerializeToString())


def _first_lines(error: BaseException) -> str:
    """What happened, without the advice and the traces below; a line that ends with a colon goes on in the next."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


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
    names = [entry.name for entry in session.get_inputs()]
    try:
        feeds = dict(zip(names, (tensor.cpu().numpy() for tensor in example.tensors), strict=True))
        got = [torch.from_numpy(array) for array in session.run(None, feeds)]
    except Exception as error:
        raise SparsityError(f"onnxruntime does not run the graph on ({example}): {_first_lines(error)}") from error
    return difference(answer, got)
