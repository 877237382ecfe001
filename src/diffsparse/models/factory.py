"""Models by name: families of networks, and the user's own classes as package.module:Name."""

import importlib
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from diffsparse.errors import SparsityError, require_number
from diffsparse.models.postactivation import MobileNetV1, ResNet
from diffsparse.models.preactivation import DenseNet, PreActivationResNet, PreResNet
from diffsparse.models.transformer import HEAD_SIZE, VisionTransformer
from diffsparse.registry import Registry

DEPTH = r"(?P<depth>[1-9][0-9]{0,3})"
MULTIPLIER = r"(?:-(?P<multiplier>-?[0-9]*\.?[0-9]+))?"
_WIDEST = 10


@dataclass(frozen=True, kw_only=True)
class Family:
    """Networks whose names follow one pattern."""

    grammar: str
    """The names as error messages show them."""
    pattern: str
    """Regular expression that a whole name matches."""
    build: Callable[[re.Match[str], int, int], nn.Module]
    """Makes a network from the match, the number of classes and the input channels."""
    examples: tuple[str, ...]


FAMILIES = Registry[Family]("family of networks")


def register_family(family: Family) -> None:
    """Let `create` and the command line find a family of networks.

    To be found by the command line, the module that calls this must be declared as an entry point of the group
    `diffsparse.features` in the pyproject.toml of your package.

    Example:
        >>> def build(match, num_classes, in_channels):
        ...     return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * int(match["size"]) ** 2, num_classes))
        >>> register_family(Family(
        ...     grammar="linear<size>", pattern="linear(?P<size>[0-9]+)", build=build, examples=("linear8",)))
        >>> create("linear8", 3, in_channels=1)[1]
        Linear(in_features=64, out_features=3, bias=True)
    """
    FAMILIES.add(family.grammar, family)


def create(name: str, num_classes: int = 10, *, in_channels: int = 3) -> nn.Module:
    """A freshly initialised network.

    A name is `<family><depth>[-<width multiplier>][-<variant>]`. The multiplier scales the channels of the first stage
    (in a DenseNet the growth) and defaults to 1. The variants are `preact` of `resnet50`, `imagenet` (for large
    images) of the MobileNets and `small` (for images of 8 pixels) of the wired one. `names()` lists examples.

    `num_classes` is the size of the output, `in_channels` the channels of the image. Raises `SparsityError` if the name
    is unknown or there is no network of that size.

    Example:
        >>> import torch
        >>> create("preresnet20-0.5")(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    family, match = _find_family(name)
    return family.build(match, num_classes, in_channels)


def names() -> tuple[str, ...]:
    """Names that `create` knows, some of each family."""
    return tuple(name for _, family in FAMILIES.items() for name in family.examples)


def with_multiplier(name: str, multiplier: float) -> str | None:
    """The name of the network whose width multiplier is `multiplier` times that of `name`; None if there is none.

    Example:
        >>> with_multiplier("mobilenetv1-0.5-imagenet", 0.5), with_multiplier("resnet50-preact", 0.75)
        ('mobilenetv1-0.25-imagenet', 'resnet50-0.75-preact')
    """
    family, match = _find_family(name)
    if "multiplier" not in re.compile(family.pattern).groupindex:
        return None
    own = match["multiplier"]
    number = f"{multiplier * float(own or 1):.4f}".rstrip("0").rstrip(".")
    if own is not None:
        return name[: match.start("multiplier")] + number + name[match.end("multiplier") :]
    candidates = (f"{name[:place]}-{number}{name[place:]}" for place in range(len(name), 0, -1))
    return next((c for c in candidates if (m := re.fullmatch(family.pattern, c)) and m["multiplier"] == number), None)


def make_named(name: str, keywords: Mapping[str, Any]) -> nn.Module:
    """Call the model class `name`, one of `names()` or package.module:Name, with the keyword arguments."""
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
    """Keyword arguments from a JSON object."""
    try:
        keywords = json.loads(text)
    except json.JSONDecodeError as error:
        raise SparsityError(f"arguments must be a JSON object, got {text!r}: {error}") from error
    if not isinstance(keywords, dict):
        raise SparsityError(f"arguments must be a JSON object, got {text!r}")
    return keywords


def find_factory(name: str) -> Callable[..., Any]:
    """The class or function that makes the model `name`; the user's modules may be in the current folder."""
    if ":" not in name:
        _find_family(name)
        return partial(create, name)
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise SparsityError(f"a model is one of {', '.join(names())}, or package.module:Name; got {name!r}")
    # like python -m, find modules in the current folder
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


def _find_family(name: str) -> tuple[Family, re.Match[str]]:
    if not isinstance(name, str):
        raise SparsityError(f"the name of a network must be a string, got {name!r}")
    for _, family in FAMILIES.items():
        if match := re.fullmatch(family.pattern, name):
            return family, match
    close = get_close_matches(name.lower(), names(), n=1)
    hint = f", the closest is {close[0]!r}" if close else ""
    known = ", ".join(FAMILIES.names())
    raise SparsityError(f"unknown network {name!r}{hint}; there are {known}, and your own as package.module:Name")


def width_multiplier(match: re.Match[str], least_width: int) -> float:
    """The width multiplier in a name; `least_width` is the smallest width it is applied to."""
    name = f"the width multiplier of '{match.string}'"
    multiplier = require_number(name, float(match["multiplier"] or 1), above=0, high=_WIDEST)
    if int(multiplier * least_width) < 1:
        raise SparsityError(f"{name} leaves nothing of {least_width} channels")
    return multiplier


def _scaled(match: re.Match[str], width: int) -> int:
    return int(width_multiplier(match, width) * width)


for _family in (
    Family(
        grammar="preresnet<depth>[-<multiplier>]",
        pattern=f"preresnet{DEPTH}{MULTIPLIER}",
        build=lambda match, classes, channels: PreResNet(
            int(match["depth"]), classes, width=_scaled(match, 16), in_channels=channels
        ),
        examples=("preresnet20", "preresnet20-0.5", "preresnet56", "preresnet110", "preresnet164"),
    ),
    Family(
        grammar="densenet<depth>[-<multiplier>]",
        pattern=f"densenet{DEPTH}{MULTIPLIER}",
        build=lambda match, classes, channels: DenseNet(
            int(match["depth"]), classes, growth=_scaled(match, 12), in_channels=channels
        ),
        examples=("densenet40", "densenet40-0.5"),
    ),
    Family(
        grammar="resnet50[-<multiplier>][-preact]",
        pattern=f"resnet50{MULTIPLIER}(?P<preact>-preact)?",
        build=lambda match, classes, channels: (PreActivationResNet if match["preact"] else ResNet)(
            classes, width=_scaled(match, 64), in_channels=channels
        ),
        examples=("resnet50", "resnet50-preact"),
    ),
    Family(
        grammar="mobilenetv1[-<multiplier>][-imagenet]",
        pattern=f"mobilenetv1{MULTIPLIER}(?P<imagenet>-imagenet)?",
        build=lambda match, classes, channels: MobileNetV1(
            classes, multiplier=width_multiplier(match, 32), imagenet=bool(match["imagenet"]), in_channels=channels
        ),
        examples=("mobilenetv1", "mobilenetv1-0.25", "mobilenetv1-0.5-imagenet"),
    ),
    Family(
        grammar="vit-tiny[-<multiplier>]",
        pattern=f"vit-tiny{MULTIPLIER}",
        build=lambda match, classes, channels: VisionTransformer(
            classes, in_channels=channels, multiplier=width_multiplier(match, HEAD_SIZE)
        ),
        examples=("vit-tiny", "vit-tiny-0.5"),
    ),
):
    register_family(_family)
