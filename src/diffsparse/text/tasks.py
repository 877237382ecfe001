"""Learning from text: a class for each sentence, or the next byte at every position."""

import re
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from diffsparse.data.dataset import DataSet
from diffsparse.errors import SparsityError
from diffsparse.methods import Sparsifying
from diffsparse.models.factory import MULTIPLIER, make_named, width_multiplier
from diffsparse.models.transformer import HEAD_SIZE, LanguageModel, TextClassifier
from diffsparse.text.tokens import VOCABULARY
from diffsparse.training.classification import ClassificationObjective
from diffsparse.training.config import Recipe
from diffsparse.training.task import Objective, Task

CLASSIFIER, DECODER = "bert-mini", "gpt-mini"


def pattern(network: str) -> str:
    """Names of a network of this package: its own, and with a width multiplier."""
    return f"{network}{MULTIPLIER}"


def _built(
    network: str, make: Callable[..., nn.Module], name: str, keywords: dict[str, Any], known: dict[str, Any], data: str
) -> nn.Module:
    """The network called `name`, told what the data says; the user's own class gets the user's keywords alone."""
    if ":" in name:
        return make_named(name, keywords)
    if (match := re.fullmatch(pattern(network), name)) is None:
        raise SparsityError(f"{name} cannot learn from {data}; {network} can, or your own class, package.module:Name")
    given = known | {"multiplier": width_multiplier(match, HEAD_SIZE)} | keywords
    try:
        return make(**given)
    except TypeError as error:
        raise SparsityError(f"{name} cannot be called with {keywords}: {error}") from error


class TextClassification(Task):
    """Sentences with one label each; the network gives (N, classes)."""

    def build(self, name: str, keywords: dict[str, Any], data: DataSet, settings: Sparsifying) -> nn.Module:
        known = {"num_classes": data.num_outputs, "length": data.input_shape[0], "vocabulary": VOCABULARY}
        return _built(CLASSIFIER, TextClassifier, name, keywords, known, "sentences with labels")

    def objective(self, recipe: Recipe, teacher: nn.Module | None) -> Objective:
        smoothing, settings = recipe.optimisation.label_smoothing, recipe.distillation
        return ClassificationObjective(smoothing, teacher, settings.alpha, settings.temperature)


class LanguageModelling(Task):
    """The next byte at every position; the network gives (N, length, 256)."""

    def build(self, name: str, keywords: dict[str, Any], data: DataSet, settings: Sparsifying) -> nn.Module:
        known = {"length": data.input_shape[0], "vocabulary": VOCABULARY}
        return _built(DECODER, LanguageModel, name, keywords, known, "plain text")

    def objective(self, recipe: Recipe, teacher: nn.Module | None) -> Objective:
        smoothing, settings = recipe.optimisation.label_smoothing, recipe.distillation
        per_token = None if teacher is None else nn.Sequential(teacher, nn.Flatten(0, 1))
        return LanguageObjective(smoothing, per_token, settings.alpha, settings.temperature)


class LanguageObjective(ClassificationObjective):
    """Cross entropy in nats per token; every position is an answer of its own."""

    headline = "nats_per_token"
    higher_is_better = False
    sizes = 2

    def loss(self, outputs: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over all positions; the teacher gives (N * length, vocabulary)."""
        return super().loss(outputs.flatten(0, 1), inputs, targets.flatten())

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Summed cross entropy, number of tokens."""
        return super().sums(outputs.flatten(0, 1), targets.flatten())[[0, 2]]

    def figures(self, sums: Tensor) -> dict[str, float]:
        """The mean cross entropy, as "loss" and under a name that says what it counts."""
        loss = float(sums[0] / sums[1])
        return {"loss": loss, self.headline: loss}
