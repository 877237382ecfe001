"""The three tasks: network, data, length of training. Each plain run takes about three minutes on one core."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import nn

from diffsparse.models.transformer import LanguageModel, TextClassifier, VisionTransformer
from experiments.transformer_runs.data import Data, images, sentences, shakespeare


@dataclass(frozen=True, kw_only=True)
class Task:
    """One network on one data set."""

    network: Callable[..., nn.Module]
    """Makes it; `multiplier` is a factor on all widths."""
    multiplier: float = 1.0
    """Of the whole network."""
    data: Callable[[Path], Data]
    figure: str
    """What counts: "loss" in nats per token, or "accuracy" in percent."""
    steps: int
    """Of the plain run, and of everything that starts from scratch."""
    tuning: int
    """Steps from the trained network."""
    batch: int
    rate: float
    """Peak learning rate of AdamW; a cosine to zero after a warm-up over a twentieth of the steps."""
    tuning_rate: float
    weight_decay: float = 0.01


TASKS = {
    "shakespeare": Task(
        network=partial(LanguageModel, vocabulary=65, length=64, layers=4, heads=4),
        data=partial(shakespeare, length=64),
        figure="loss",
        steps=1500,
        tuning=500,
        batch=16,
        rate=2e-3,
        tuning_rate=1e-3,
    ),
    "sst2": Task(
        network=partial(TextClassifier, 2, vocabulary=6000, length=40, layers=4, heads=4, dropout=0.1),
        data=partial(sentences, length=40, vocabulary=6000),
        figure="accuracy",
        steps=1200,
        tuning=400,
        batch=32,
        rate=5e-4,
        tuning_rate=2.5e-4,
    ),
    "cifar10": Task(
        network=partial(VisionTransformer, 10, image_size=16, patch=4, layers=6, heads=6),
        multiplier=0.5,
        data=partial(images, side=16),
        figure="accuracy",
        steps=2000,
        tuning=650,
        batch=64,
        rate=1e-3,
        tuning_rate=5e-4,
    ),
}
