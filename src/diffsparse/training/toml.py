"""Configurations as TOML: read by the standard library, written here."""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from diffsparse.errors import SparsityError
from diffsparse.training.config import Recipe


def read_recipe(path: str | os.PathLike[str]) -> Recipe:
    """The recipe in a TOML file; raises with the file and the key on what is wrong."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SparsityError(f"cannot read the configuration '{os.fspath(path)}': {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SparsityError(f"'{os.fspath(path)}' is not valid TOML: {error}") from error
    return Recipe.from_dict(values, f"'{os.fspath(path)}'")


def to_toml(recipe: Recipe) -> str:
    """The recipe as a TOML file that `read_recipe` and `--config` understand.

    Example:
        >>> print(to_toml(Recipe(epochs=3)).splitlines()[:3])
        ['model = "preresnet20"', 'arguments = "{}"', 'data = "digits"']
    """
    return "\n".join(_lines(recipe.as_dict())) + "\n"


def _lines(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        if not isinstance(value, Mapping):
            # strings, numbers, booleans and lists of them look the same in JSON and in TOML
            yield f"{key} = {json.dumps(value, ensure_ascii=False)}"
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield ""
            yield f"[{key}]"
            yield from _lines(value)
