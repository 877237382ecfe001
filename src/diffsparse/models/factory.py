"""Networks by name."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

from torch import nn

from diffsparse.errors import SparsityError, require_number
from diffsparse.models.densenet import DenseNet
from diffsparse.models.mobilenet import MobileNetV1
from diffsparse.models.preresnet import PreResNet
from diffsparse.models.resnet import PreActivationResNet, ResNet
from diffsparse.registry import load_features

DEPTH = r"(?P<depth>[1-9][0-9]{0,3})"
MULTIPLIER = r"(?:-(?P<multiplier>-?[0-9]*\.?[0-9]+))?"
_WIDEST = 10


@dataclass(frozen=True, kw_only=True)
class Family:
    """Networks whose names follow one pattern."""

    grammar: str
    """The names as errors show them."""
    pattern: str
    """Regular expression that a whole name matches."""
    build: Callable[[re.Match[str], int, int], nn.Module]
    """From the match, the number of classes and the input channels to a network."""
    examples: tuple[str, ...]
    """Names of the family to list."""


_FAMILIES: list[Family] = []


def register_family(family: Family) -> None:
    """Let `create` and the command line know a family of networks."""
    _FAMILIES.append(family)


def families() -> list[Family]:
    """Every family, those of other packages included."""
    load_features()
    return _FAMILIES


def create(name: str, num_classes: int = 10, *, in_channels: int = 3) -> nn.Module:
    """A freshly initialised network.

    A name is `<family><depth>[-<width multiplier>][-<variant>]`. The multiplier scales the channels of the first stage,
    in a DenseNet the growth, and is 1 if left out; the variants are `preact` of `resnet50`, `imagenet` (for large
    images) of the MobileNets and `small` (for images of 8 pixels) of the wired one. `names()` lists examples.

    Args:
        name: which network.
        num_classes: size of the output.
        in_channels: channels of the image.

    Raises:
        SparsityError: the name is unknown, or there is no network of such a size.

    Example:
        >>> import torch
        >>> create("preresnet20-0.5")(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    family, match = find_family(name)
    return family.build(match, num_classes, in_channels)


def find_family(name: str) -> tuple[Family, re.Match[str]]:
    """The family of a network and what its name says; raises if there is none."""
    if not isinstance(name, str):
        raise SparsityError(f"the name of a network must be a string, got {name!r}")
    for family in families():
        if match := re.fullmatch(family.pattern, name):
            return family, match
    close = get_close_matches(name.lower(), names(), n=1)
    hint = f", the closest is {close[0]!r}" if close else ""
    known = ", ".join(family.grammar for family in families())
    raise SparsityError(f"unknown network {name!r}{hint}; there are {known}, and your own as package.module:Name")


def names() -> tuple[str, ...]:
    """Names that `create` knows, some of each family.

    Example:
        >>> "densenet40" in names()
        True
    """
    return tuple(name for family in families() for name in family.examples)


def width_multiplier(match: re.Match[str], least_width: int) -> float:
    """The width multiplier in a name; `least_width` is the smallest width it is applied to."""
    multiplier = float(match["multiplier"] or 1)
    require_number(f"the width multiplier of '{match.string}'", multiplier, above=0, high=_WIDEST)
    if int(multiplier * least_width) < 1:
        raise SparsityError(f"the width multiplier of '{match.string}' leaves nothing of {least_width} channels")
    return multiplier


def _scaled(match: re.Match[str], width: int) -> int:
    return int(width_multiplier(match, width) * width)


def _preresnet(match: re.Match[str], num_classes: int, in_channels: int) -> nn.Module:
    return PreResNet(int(match["depth"]), num_classes, width=_scaled(match, 16), in_channels=in_channels)


def _densenet(match: re.Match[str], num_classes: int, in_channels: int) -> nn.Module:
    return DenseNet(int(match["depth"]), num_classes, growth=_scaled(match, 12), in_channels=in_channels)


def _resnet(match: re.Match[str], num_classes: int, in_channels: int) -> nn.Module:
    kind = PreActivationResNet if match["preact"] else ResNet
    return kind(num_classes, width=_scaled(match, 64), in_channels=in_channels)


def _mobilenet(match: re.Match[str], num_classes: int, in_channels: int) -> nn.Module:
    imagenet = match["imagenet"] is not None
    return MobileNetV1(num_classes, multiplier=width_multiplier(match, 32), imagenet=imagenet, in_channels=in_channels)


for _family in (
    Family(
        grammar="preresnet<depth>[-<multiplier>]",
        pattern=f"preresnet{DEPTH}{MULTIPLIER}",
        build=_preresnet,
        examples=("preresnet20", "preresnet20-0.5", "preresnet56", "preresnet110", "preresnet164"),
    ),
    Family(
        grammar="densenet<depth>[-<multiplier>]",
        pattern=f"densenet{DEPTH}{MULTIPLIER}",
        build=_densenet,
        examples=("densenet40", "densenet40-0.5"),
    ),
    Family(
        grammar="resnet50[-<multiplier>][-preact]",
        pattern=f"resnet50{MULTIPLIER}(?P<preact>-preact)?",
        build=_resnet,
        examples=("resnet50", "resnet50-preact"),
    ),
    Family(
        grammar="mobilenetv1[-<multiplier>][-imagenet]",
        pattern=f"mobilenetv1{MULTIPLIER}(?P<imagenet>-imagenet)?",
        build=_mobilenet,
        examples=("mobilenetv1", "mobilenetv1-0.25", "mobilenetv1-0.5-imagenet"),
    ),
):
    register_family(_family)
