"""Models as ONNX graphs, and onnxruntime sessions that run them."""

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from diffsparse.errors import SparsityError, import_extra
from diffsparse.example import Example

QUIET = {"torch.onnx._internal.exporter": logging.ERROR, "onnxscript": logging.CRITICAL}
"""Loggers of the exporter, each with the level from which on it is heard."""


def has_onnxruntime() -> bool:
    """Whether all packages of the `onnx` extra are installed."""
    return all(find_spec(name) is not None for name in ("onnx", "onnxruntime", "onnxscript"))


def onnxruntime() -> Any:
    """The package, or an error that says how to install it."""
    return import_extra("onnxruntime", "onnxruntime is missing", "onnx onnxruntime onnxscript")


def onnx_graph(model: nn.Module, example: Example, free: Mapping[int, str | None], **options: Any) -> bytes:
    """`model`, which is in eval mode, as an ONNX graph.

    The dimensions `free` of each input may change, and have these names in the graph. Options are those of
    `torch.onnx.export`.
    """

    def dynamic(arg: Any) -> dict[int, Any] | None:
        dims = [dim for dim in free if isinstance(arg, Tensor) and dim < arg.dim()]
        return {dim: free[dim] or torch.export.Dim.DYNAMIC for dim in dims} if dims else None

    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        # the exporter warns and logs about its own internals, not about the model
        warnings.simplefilter("ignore")
        for name, level in QUIET.items():
            log = logging.getLogger(name)
            stack.callback(log.setLevel, log.level)
            log.setLevel(level)
        try:
            program = torch.onnx.export(
                model,
                example.args,
                kwargs=example.kwargs or None,
                dynamic_shapes=tree_map(dynamic, example.inputs) if free else None,
                dynamo=True,
                external_data=False,
                verbose=False,
                **options,
            )
        except Exception as error:
            # the exporter raises errors of its own around those of torch.export and of the user's code
            problem = first_lines(error.__cause__ or error)
            fixed = "static shape" in problem or "Constraints violated" in problem
            hint = f"its {named(list(free))} must be free to change, but its code fixes it: " if fixed else ""
            raise SparsityError(f"{type(model).__name__} cannot be exported to ONNX: {hint}{problem}") from error
    assert program is not None
    proto, asked = program.model_proto, options.get("opset_version")
    written = proto.opset_import[0].version
    if asked is not None and written != asked:
        raise SparsityError(
            f"PyTorch cannot write opset {asked}, only {written} or newer; leave opset out, or raise it"
        )
    return cast(bytes, proto.SerializeToString())


def session_of(graph: bytes, threads: int | None = None) -> Any:
    """An onnxruntime session on the CPU; with `threads`, it uses as many inside an operator."""
    package = onnxruntime()
    options = package.SessionOptions()
    # it warns of devices that are not there
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return package.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        # the errors of onnxruntime have no common base class
        raise SparsityError(f"onnxruntime does not take the exported graph: {first_lines(error)}") from error


def feeds_of(session: Any, example: Example) -> dict[str, Any]:
    """The tensors of the example by the names of the session's inputs."""
    names = [entry.name for entry in session.get_inputs()]
    return dict(zip(names, (tensor.cpu().numpy() for tensor in example.tensors), strict=True))


def onnx_call(model: nn.Module, example: Example) -> Callable[[], Any]:
    """Runs `model`, which is in eval mode, on the example by onnxruntime, with as many threads as torch has."""
    threads = torch.get_num_threads()
    try:
        session = session_of(_traced_graph(model, example), threads)
    except Exception:
        # the tracer refuses some operators, mistakes others, and raises errors of many kinds
        session = session_of(onnx_graph(model, example, {}), threads)
    return partial(session.run, None, feeds_of(session, example))


def _traced_graph(model: nn.Module, example: Example) -> bytes:
    """The graph for the sizes of the example, traced: that takes a twentieth of the time."""
    file: Any = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, example.args, file, kwargs=example.kwargs or None, dynamo=False)
    return cast(bytes, file.getvalue())


def named(free: list[int]) -> str:
    """Dimensions that are free, in words."""
    return "batch" if free == [0] else f"dimensions {', '.join(map(str, free))}"


def first_lines(error: BaseException) -> str:
    """What happened, without the advice and the traces below; a line that ends with a colon goes on in the next."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])
