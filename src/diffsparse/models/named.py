"""A model named in words: one of this package, or the user's own class."""

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from diffsparse.errors import SparsityError
from diffsparse.models.factory import create, find_family, names


def make_named(name: str, keywords: Mapping[str, Any]) -> nn.Module:
    """The model that `name`, one of `names()` or package.module:Name, makes of the keyword arguments.

    Example:
        >>> make_named("torch.nn:Linear", {"in_features": 2, "out_features": 3})
        Linear(in_features=2, out_features=3, bias=True)
    """
    factory = find_factory(name)
    try:
        made = factory(**keywords)
    except SparsityError:
        raise
    except Exception as error:
        raise SparsityError(f"{name} cannot be called with {dict(keywords)}: {error}") from error
    if not isinstance(made, nn.Module):
        raise SparsityError(f"{name} makes a {type(made).__name__}, not a module")
    return made


def parse_arguments(text: str) -> dict[str, Any]:
    """Keyword arguments written as a JSON object."""
    try:
        keywords = json.loads(text)
    except json.JSONDecodeError as error:
        raise SparsityError(f"arguments must be a JSON object, got {text!r}: {error}") from error
    if not isinstance(keywords, dict):
        raise SparsityError(f"arguments must be a JSON object, got {text!r}")
    return keywords


def find_factory(name: str) -> Callable[..., Any]:
    """What makes the model called `name`; for a class of the user's, modules in the current folder are found too."""
    if ":" not in name:
        find_family(name)
        return partial(create, name)
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise SparsityError(f"a model is one of {', '.join(names())}, or package.module:Name; got {name!r}")
    # as python -m does: modules beside the user are found
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise SparsityError(f"cannot find {name}: {error}") from error
    if not callable(found):
        raise SparsityError(f"{name} is a {type(found).__name__} and cannot be called")
    return found  # type: ignore[no-any-return]
