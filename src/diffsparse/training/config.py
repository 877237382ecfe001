"""What a training run is: a frozen configuration, checked before any work."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from diffsparse.errors import SparsityError, require_number, require_whole
from diffsparse.methods import Sparsifying
from diffsparse.methods.method import check_method
from diffsparse.plain import from_plain, to_plain


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """How weights are trained."""

    optimizer: Literal["sgd", "adam"] = "sgd"
    """SGD with momentum, or Adam."""
    learning_rate: float = 0.1
    """Peak learning rate."""
    gate_rate: float = 1.0
    """Learning rate of gates, as a multiple of that of weights."""
    momentum: float = 0.9
    """Momentum of SGD; beta1 of Adam."""
    nesterov: bool = True
    """Whether SGD's momentum is Nesterov's."""
    weight_decay: float = 1e-4
    """Of everything but gates."""
    gate_weight_decay: float = 0.0
    """Of gates; it raises their thresholds."""
    schedule: Literal["cosine", "steps", "constant"] = "cosine"
    """Learning rate: a cosine to zero by iteration, or a factor at each milestone, or nothing."""
    milestones: tuple[float, ...] = (0.5, 0.75)
    """For steps: where the factor applies, as shares of all epochs."""
    factor: float = 0.1
    """For steps: the factor."""
    warmup_epochs: float = 0.0
    """The learning rate rises linearly from zero over these."""
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
        require_number("learning_rate", self.learning_rate, above=0)
        require_number("gate_rate", self.gate_rate, above=0)
        require_number("momentum", self.momentum, low=0, high=1)
        require_number("weight_decay", self.weight_decay, low=0)
        require_number("gate_weight_decay", self.gate_weight_decay, low=0)
        require_number("factor", self.factor, above=0)
        require_number("warmup_epochs", self.warmup_epochs, low=0)
        require_number("label_smoothing", self.label_smoothing, low=0, high=1)
        require_whole("accumulate", self.accumulate, low=1)
        for milestone in self.milestones:
            require_number("a milestone, a share of all epochs,", milestone, above=0, high=1)
        if self.clip is not None:
            require_number("clip", self.clip, above=0)
        if self.ema is not None:
            require_number("ema", self.ema, low=0, high=1)
        if self.optimizer == "adam" and self.momentum == 1:
            raise SparsityError("momentum, the beta1 of Adam, must be below 1, got 1")


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """Learning from a larger network as well as from the labels."""

    teacher: str | None = None
    """A file of `diffsparse.save` with the teacher's weights, or "train" to train it first; None for no teacher."""
    teacher_model: str | None = None
    """Name of the teacher's architecture; by default the student's."""
    teacher_epochs: int | None = None
    """Epochs for a teacher that is trained first; by default the student's."""
    alpha: float = 0.4
    """Weight of the teacher's term; the labels have the rest."""
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
    """Where and how the arithmetic is done."""

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
    """A name of `diffsparse.models.names()`, or package.module:Name of your own class."""
    arguments: str = "{}"
    """Keyword arguments for the model, as a JSON object."""
    data: str = "digits"
    """A name of `diffsparse.data.names()`."""
    data_root: Path | None = None
    """Folder of the data; by default the variable DIFFSPARSE_DATA."""
    download: bool = False
    """Whether to fetch the data if it is not there and has a public address."""
    image_size: int | None = None
    """Width and height of inputs that are made from image files."""
    augment: bool = True
    """Whether training images are shifted and flipped, where that suits the data."""
    epochs: int = 30
    """Passes over the training images."""
    batch_size: int = 64
    """Images per step, over all processes."""
    seed: int = 0
    """Of the weights, the order of images and their augmentation."""
    optimisation: Optimisation = field(default_factory=Optimisation)
    """How weights are trained."""
    sparsifying: Sparsifying = field(default_factory=Sparsifying)
    """How the network is made smaller."""
    distillation: Distillation = field(default_factory=Distillation)
    """Learning from a larger network."""
    hardware: Hardware = field(default_factory=Hardware)
    """Where the arithmetic is done."""

    def check(self) -> None:
        """Raise before any work if a value makes no sense."""
        require_whole("epochs", self.epochs, low=1)
        require_whole("batch_size", self.batch_size, low=1)
        require_whole("seed", self.seed, low=0, high=2**31 - 1)
        for part in (self.optimisation, self.sparsifying, self.distillation, self.hardware):
            for entry in fields(part):
                _check_choice(entry.name, getattr(part, entry.name), get_type_hints(type(part))[entry.name])
            part.check()
        check_method(self.sparsifying)
        self._check_lambda()
        if self.batch_size % self.optimisation.accumulate:
            raise SparsityError(
                f"a batch of {self.batch_size} cannot go in {self.optimisation.accumulate} equal pieces (accumulate)"
            )

    def _check_lambda(self) -> None:
        """Raise if lambda does not get anywhere within the epochs."""
        delay, ramp = self.sparsifying.delay_epochs, self.sparsifying.ramp_epochs
        idle = {"delay_epochs": delay, "settle_epochs": self.sparsifying.settle_epochs}
        if sum(idle.values()) >= self.epochs:
            given = " and ".join(f"{name}={value:g}" for name, value in idle.items() if value)
            raise SparsityError(f"{given} leaves nothing of {self.epochs} epochs to sparsify in")
        if sum(idle.values()) + ramp > self.epochs:
            raise SparsityError(
                f"ramp_epochs={ramp:g} ends after lambda is over: there are "
                f"{self.epochs - sum(idle.values()):g} epochs for it"
            )

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON and TOML; what is None is left out."""
        return to_plain(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "the configuration") -> "Recipe":
        """The recipe that `as_dict` gave; raises with the key and `where` on what it does not know."""
        return from_plain(cls, values, where)


def _check_choice(name: str, value: object, hint: Any) -> None:
    choices = get_args(hint)
    if choices and all(isinstance(choice, str) for choice in choices) and value not in choices:
        raise SparsityError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
