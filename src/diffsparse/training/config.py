"""What a training run is: a frozen configuration, checked before any work, and its form as TOML."""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from diffsparse.errors import SparsityError, require_number, require_one_of, require_whole
from diffsparse.methods import Sparsifying
from diffsparse.methods.method import check_method
from diffsparse.plain import from_plain, to_plain


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """How weights are trained."""

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """SGD with momentum, Adam, or Adam with decoupled weight decay, which transformers want."""
    learning_rate: float | None = None
    """Peak learning rate; by default 0.1 for SGD, 0.001 for Adam and AdamW."""
    gate_rate: float = 1.0
    """Learning rate of gates, as a multiple of that of weights."""
    momentum: float = 0.9
    """Momentum of SGD; beta1 of Adam and AdamW."""
    nesterov: bool = True
    """Whether SGD's momentum is Nesterov's."""
    weight_decay: float = 1e-4
    """Of everything but gates."""
    gate_weight_decay: float = 0.0
    """Of gates; it raises their thresholds."""
    schedule: Literal["cosine", "steps", "constant"] = "cosine"
    """Learning rate: a cosine to zero by iteration, or a factor at each milestone, or constant."""
    milestones: tuple[float, ...] = (0.5, 0.75)
    """For steps: where the factor applies, as shares of all epochs."""
    factor: float = 0.1
    """For steps: the factor."""
    warmup_epochs: float = 0.0
    """The learning rate rises linearly from zero over these epochs."""
    label_smoothing: float = 0.0
    """Share of the target spread over all classes."""
    clip: float | None = None
    """Largest norm of the gradient; larger ones are scaled down."""
    accumulate: int = 1
    """Pieces in which a batch goes through the network, to save memory."""
    ema: float | None = None
    """Decay of an exponential moving average of the weights, which is then what is tested and kept."""

    def check(self) -> None:
        """Raise if a value makes no sense."""
        for name, value in (("learning_rate", self.peak_rate), ("gate_rate", self.gate_rate), ("factor", self.factor)):
            require_number(name, value, above=0)
        for name in ("weight_decay", "gate_weight_decay", "warmup_epochs"):
            require_number(name, getattr(self, name), low=0)
        for name in ("momentum", "label_smoothing"):
            require_number(name, getattr(self, name), low=0, high=1)
        require_whole("accumulate", self.accumulate, low=1)
        for milestone in self.milestones:
            require_number("a milestone, a share of all epochs,", milestone, above=0, high=1)
        if self.clip is not None:
            require_number("clip", self.clip, above=0)
        if self.ema is not None:
            require_number("ema", self.ema, low=0, high=1)
        if self.adaptive and self.momentum == 1:
            raise SparsityError(f"momentum, the beta1 of {self.optimizer}, must be below 1, got 1")

    @property
    def peak_rate(self) -> float:
        """The learning rate that was given, or what the optimiser usually takes."""
        usual = 1e-3 if self.adaptive else 0.1
        return usual if self.learning_rate is None else self.learning_rate

    @property
    def adaptive(self) -> bool:
        """Whether each number moves by about the learning rate per step, whatever its gradient."""
        return self.optimizer != "sgd"


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """Learning from a larger network as well as from the labels."""

    teacher: str | None = None
    """A file of `diffsparse.save` with the teacher's weights, or "train" to train it first; None for no teacher."""
    teacher_model: str | None = None
    """Name of the teacher's architecture; by default that of the student."""
    teacher_epochs: int | None = None
    """Epochs for a teacher that is trained first; by default those of the student."""
    alpha: float = 0.4
    """Weight of the teacher's term; the labels get the rest."""
    temperature: float = 4.0
    """Of both softmaxes in the teacher's term."""

    def check(self) -> None:
        """Raise if a value makes no sense."""
        require_number("alpha", self.alpha, low=0, high=1)
        require_number("temperature", self.temperature, above=0)
        if self.teacher_epochs is not None:
            require_whole("teacher_epochs", self.teacher_epochs, low=1)
        if self.teacher is None and (self.teacher_model is not None or self.teacher_epochs is not None):
            raise SparsityError('there is no teacher; give a file of weights or "train"')
        if self.teacher is not None and self.teacher != "train" and not Path(self.teacher).is_file():
            raise SparsityError(f"there is no file '{self.teacher}' with the weights of the teacher")


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Where and how to compute."""

    device: str | None = None
    """A torch device; by default the first GPU, else the CPU."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of convolutions and matrix products; weights, gates and sums stay float32."""
    channels_last: bool = False
    """Memory format of images; often faster on GPUs."""
    compile: bool = False
    """Whether torch.compile makes the forward and backward pass."""
    sync_batchnorm: bool = False
    """Whether batch norms see the batch of all processes."""
    threads: int | None = None
    """Threads inside an operation on the CPU; torch's own choice by default."""

    def check(self) -> None:
        """Raise if a value makes no sense."""
        if self.threads is not None:
            require_whole("threads", self.threads, low=1)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run, from the data to the compact network."""

    model: str = "preresnet20"
    """preresnet20, densenet40 and so on (a wrong name lists all), or package.module:Name of your own class."""
    arguments: str = "{}"
    """Keyword arguments for the model, as a JSON object."""
    data: str = "digits"
    """digits, cifar10 and so on; a wrong name lists all."""
    data_root: Path | None = None
    """Folder of the data; by default the variable DIFFSPARSE_DATA."""
    download: bool = False
    """Whether to download the data if it is missing and has a public address."""
    image_size: int | None = None
    """Width and height of inputs that are made from image files, or that CIFAR images are averaged to (16, 8, 4)."""
    augment: bool = True
    """Whether training images are shifted and flipped, where that suits the data."""
    epochs: int = 30
    """Passes over the training images."""
    batch_size: int = 64
    """Images per step, over all processes."""
    seed: int = 0
    """Seed of the weights, the order of images and their augmentation."""
    optimisation: Optimisation = field(default_factory=Optimisation)
    """How weights are trained."""
    sparsifying: Sparsifying = field(default_factory=Sparsifying)
    """How the network is made smaller."""
    distillation: Distillation = field(default_factory=Distillation)
    """Learning from a larger network."""
    hardware: Hardware = field(default_factory=Hardware)
    """Where and how to compute."""

    def check(self) -> None:
        """Raise before any work if a value makes no sense."""
        require_whole("epochs", self.epochs, low=1)
        require_whole("batch_size", self.batch_size, low=1)
        require_whole("seed", self.seed, low=0, high=2**31 - 1)
        for part in (self.optimisation, self.sparsifying, self.distillation, self.hardware):
            for name, hint in get_type_hints(type(part)).items():
                choices = get_args(hint)
                if choices and all(isinstance(choice, str) for choice in choices):
                    require_one_of(name, getattr(part, name), choices)
            part.check()
        check_method(self.sparsifying)
        self._check_lambda()
        if self.batch_size % (pieces := self.optimisation.accumulate):
            raise SparsityError(f"a batch of {self.batch_size} cannot go in {pieces} equal pieces (accumulate)")

    def _check_lambda(self) -> None:
        """Raise if there is no time for lambda, or for its ramp, within the epochs."""
        idle = {name: getattr(self.sparsifying, name) for name in ("delay_epochs", "settle_epochs")}
        left, ramp = self.epochs - sum(idle.values()), self.sparsifying.ramp_epochs
        if left <= 0:
            given = " and ".join(f"{name}={value:g}" for name, value in idle.items() if value)
            raise SparsityError(f"{given} leaves nothing of {self.epochs} epochs to sparsify in")
        if ramp > left:
            raise SparsityError(f"ramp_epochs={ramp:g} ends after lambda is over: there are {left:g} epochs for it")

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON and TOML; what is None is left out."""
        return to_plain(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "the configuration") -> "Recipe":
        """The recipe that `as_dict` gave; an error names the unknown key and `where` it is."""
        return from_plain(cls, values, where)


def read_recipe(path: str | os.PathLike[str]) -> Recipe:
    """The recipe in a TOML file; an error names the file and the key."""
    name = os.fspath(path)
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SparsityError(f"cannot read the configuration '{name}': {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SparsityError(f"'{name}' is not valid TOML: {error}") from error
    return Recipe.from_dict(values, f"'{name}'")


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
            yield from ("", f"[{key}]", *_lines(value))
