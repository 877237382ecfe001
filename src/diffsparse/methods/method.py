"""What every way of making a network smaller has in common, and how methods are found by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer

from diffsparse.compaction import Compacted, compact, live_macs, live_widths
from diffsparse.errors import SparsityError, require_number, require_one_of
from diffsparse.gates import named_gates
from diffsparse.gating import Count, sparsity
from diffsparse.methods.costs import asked_costs
from diffsparse.methods.scales import batch_norms, channels
from diffsparse.methods.settings import Sparsifying
from diffsparse.penalties import FixedStrength, GradualStrength, Regulariser, SteeredStrength, StrengthController
from diffsparse.penalties.strength import LEAST_TRAVEL, Pace, WithinEpochs
from diffsparse.registry import load_features

STEERING = frozenset({"strength", "settle_epochs", "delay_epochs", "ramp_epochs"})
"""Options of every method with a lambda."""
COSTS = frozenset({"macs", "params", "bytes"})
"""Options of every method that makes a network for a cost."""
USUAL_COST = {"macs": 0.5}
"""What such a method comes to if nothing says how small the network becomes."""

Sample: TypeAlias = Callable[[], Tensor]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A network that was cut, to go on training with."""

    model: nn.Module
    compacted: Compacted[nn.Module] | None
    """How it follows from the whole one, for saving; its model is `model`. None if another library cut."""
    removed: Count
    """Channels, and heads and neurons, that were removed, of all before the cut."""
    kinds: Mapping[str, Count] = field(default_factory=dict)
    """The same by what they are, where that is known."""


class Method:
    """Plain training, and the base of all others: each overrides what it does differently."""

    options: ClassVar[frozenset[str]] = frozenset()
    """Fields of `Sparsifying` that this method reads; any other that the user sets is refused."""
    instead_of_cost: ClassVar[frozenset[str]] = frozenset({"target"})
    """Options that say in another way than by a cost how small the network becomes."""
    cuts: ClassVar[bool] = False
    """Whether the network is trained, cut and trained again."""
    shrinks: bool = False
    """Whether gates leave the model while it trains."""

    @classmethod
    def check(cls, settings: Sparsifying) -> None:
        """Raise if the options do not suit this method; overrides add their own checks."""
        given = settings.given()
        for name, value in given.items():
            # a strength of 0 asks for nothing
            if name not in cls.options and (name, value) != ("strength", 0):
                takes = f"takes {', '.join(sorted(cls.options))}" if cls.options else "takes no such options"
                raise SparsityError(f"{name}={value} has no meaning for method {settings.method}, which {takes}")
        if asked := asked_costs(settings):
            cost = ", ".join(f"{name}={value:g}" for name, value in asked.items())
            for name in sorted(cls.instead_of_cost & given.keys()):
                raise SparsityError(f"{cost} and {name}={given[name]} both say how small to become; give one of them")
        if settings.target is not None and "strength" in cls.options and settings.strength == 0 and not cls.cuts:
            raise SparsityError("a target is reached by steering strength, which must be above 0, got 0")

    @classmethod
    def costs(cls, settings: Sparsifying) -> dict[str, float]:
        """What the network may cost, by metric; empty if something else says how small it becomes."""
        if not cls.options >= COSTS or cls.instead_of_cost & settings.given().keys():
            return {}
        return asked_costs(settings) or USUAL_COST

    @classmethod
    def with_strength(cls, settings: Sparsifying, pace: Pace) -> Sparsifying:
        """The options with a number for lambda, if the method has one: computed from `pace` where none is given."""
        if "strength" not in cls.options:
            return settings
        auto = settings.strength is None or settings.strength == "auto"
        return replace(settings, strength=cls.own_pace(pace).auto_strength()) if auto else settings

    @classmethod
    def own_pace(cls, pace: Pace) -> Pace:
        """How far lambda can move what becomes zero, in a run that moves weights by `pace`."""
        return pace

    @classmethod
    def from_settings(cls, settings: Sparsifying) -> "Method":
        """The method that checked options describe; a dataclass takes each option that is given by its name."""
        values = {name: getattr(settings, name) for name in getattr(cls, "__dataclass_fields__", ())}
        given = {name: value for name, value in values.items() if value is not None}
        return cls(**given | cls.costs(settings))

    def network(self, name: str, build: Callable[[str], nn.Module], example: Tensor) -> str:
        """The name of the network to train, if not that of the whole one; `build` makes one by name."""
        return name

    def prepare(self, model: nn.Module, sample: Sample | None = None) -> nn.Module:
        """The model to train, made from a fresh one; `sample` gives a few inputs, for methods that look at them."""
        return model

    def fitted(self, model: nn.Module, example: Tensor, steps: int) -> "Method":
        """This method for `model`, prepared, and a run of `steps`; raises if what was asked for cannot be reached."""
        return self

    def regulariser(self, model: nn.Module, optimizer: Optimizer) -> Regulariser | None:
        """What makes zeros in `model` during training; None if nothing does. A network that was cut trains without."""
        return None

    def zeros(self, model: nn.Module) -> Count:
        """Channels that batch norms or gates have set to zero, and neurons and heads."""
        return sum(self.zeros_by_kind(model).values(), Count(zero=0, total=0))

    def zeros_by_kind(self, model: nn.Module) -> dict[str, Count]:
        """The same by what is zero."""
        if any(True for _ in named_gates(model)):
            return sparsity(model).kinds
        dead = sum(int((norm.weight == 0).sum()) for norm in batch_norms(model))
        return {"channels": Count(zero=dead, total=channels(model))}

    def figures(self, model: nn.Module) -> dict[str, Any]:
        """What else to log after each epoch."""
        return {}

    def to_save(self, model: nn.Module) -> nn.Module | Compacted[nn.Module]:
        """The trained `model` in the form in which it can be loaded into its class."""
        return model

    def live_macs(self, model: nn.Module, example: Tensor) -> int | None:
        """MACs of one input through what is alive of `model`; None if that cannot be counted."""
        return live_macs(model, example)

    def live_widths(self, model: nn.Module, example: Tensor) -> dict[str, int] | None:
        """Outputs of each layer of what is alive of `model`; None if that cannot be told."""
        return live_widths(model, example)

    def compacted(self, model: nn.Module, fresh: nn.Module, example: Tensor) -> Compacted[nn.Module]:
        """For methods that do not cut: the compact form of the trained `model`, which came from `fresh`."""
        return compact(model, example)

    def cut(self, model: nn.Module, example: Tensor) -> Cut:
        """For methods that cut: the smaller model to go on with. `model` is left as it is."""
        raise NotImplementedError

    def controller(self, settings: Sparsifying, epochs: int, *, keeps_zeros: bool = False) -> WithinEpochs:
        """Lambda over the run; `keeps_zeros` is that of the `Regulariser`."""
        base: StrengthController = FixedStrength(settings.number)
        if settings.ramp_epochs:
            base = GradualStrength(0.0, settings.number, settings.delay_epochs, settings.ramp_epochs)
        if settings.target is not None and not self.cuts:
            base = SteeredStrength(base, settings.target, settings.delay_epochs, epochs, keeps_zeros)
        end = epochs - settings.settle_epochs if settings.settle_epochs else None
        return WithinEpochs(base, settings.delay_epochs, end)

    def shortfall(self, zeros: Count, settings: Sparsifying, pace: Pace) -> str:
        """What to tell the user if training made fewer zeros than was asked for; empty if all is well."""
        if not self.waits_for_zeros(settings):
            return ""
        if settings.target is not None and not self.controller(settings, 1).reached(zeros.fraction):
            found = f"{zeros.fraction:.1%} are zero, and the target was {settings.target:.1%}"
            return f"{found}: {self.weakness(settings, pace) or 'train for more epochs or change the strength'}"
        if zeros.zero == 0:
            weak = f"strength {settings.number:g} is too weak for this network: double it, or ask for a cost (macs)"
            return f"nothing has become zero: {self.weakness(settings, pace) or weak}"
        return ""

    def waits_for_zeros(self, settings: Sparsifying) -> bool:
        """Whether zeros should come from lambda alone."""
        return "strength" in self.options and settings.number > 0 and not self.cuts and not self.shrinks

    def weakness(self, settings: Sparsifying, pace: Pace) -> str:
        """Why lambda cannot make zeros in a run of this pace, if that is so: too few steps, or too small a lambda."""
        # how far lambda moves a gate is known for l1 alone
        if not self.waits_for_zeros(settings) or settings.norm != "l1" or pace.decays:
            return ""
        pace = self.own_pace(pace)
        if pace.travel(settings.number) >= LEAST_TRAVEL:
            return ""
        if pace.too_short:
            rates = f"the learning rates of its steps add up to {pace.total_rate:.2g}"
            return f"the run is too short for any strength: {rates}; train longer, or ask for a cost (macs)"
        fitting = f"strength {pace.auto_strength():.2g} (auto) suits a run of this length"
        return f"strength {settings.number:g} is too small: {fitting}"


@dataclass(frozen=True)
class NetworkKind:
    """Networks that need methods of their own."""

    name: str
    """What messages call them."""
    matches: Callable[[nn.Module], bool]
    """Whether a model is one of them."""


ORDINARY = NetworkKind("ordinary", lambda model: True)

# by name, and for each name by the kind of network
_METHODS: dict[str, dict[NetworkKind, type[Method]]] = {}


def register_method(name: str, method: type[Method], kind: NetworkKind = ORDINARY) -> None:
    """Make `method` a choice of `diffsparse train --method` for networks of this kind."""
    if _METHODS.setdefault(name, {}).setdefault(kind, method) is not method:
        raise SparsityError(f"there is already a method {name!r} for {kind.name} networks")


def method_names(kind: NetworkKind | None = None) -> tuple[str, ...]:
    """The names of all methods, or of those for one kind of network."""
    load_features()
    return tuple(name for name, kinds in _METHODS.items() if kind is None or kind in kinds)


def uses_strength(name: str) -> bool:
    """Whether a method of this name has a lambda, as far as is known."""
    return name not in method_names() or any("strength" in method.options for method in _METHODS[name].values())


def check_method(settings: Sparsifying) -> None:
    """Raise unless some kind of network has this method and the options suit it."""
    require_one_of("method", settings.method, method_names())
    settings.check()
    problems = []
    for method in _METHODS[settings.method].values():
        try:
            return method.check(settings)
        except SparsityError as error:
            problems.append(error)
    raise problems[0]


def choose_method(settings: Sparsifying, model: nn.Module) -> Method:
    """The method that `settings` describe, in its form for `model`.

    Raises:
        SparsityError: there is no such method for this kind of network, or an option means nothing to it.

    Example:
        >>> choose_method(Sparsifying(method="proximal-l21", strength=0.1, group_size=4), nn.Linear(1, 1))
        Proximal(strength=0.1, norm=GroupL21(size=4), target=None)
    """
    check_method(settings)
    found = _found(settings, model)
    found.check(settings)
    return found.from_settings(settings)


def resolved(settings: Sparsifying, model: nn.Module, pace: Pace) -> Sparsifying:
    """Checked options with a number for lambda, where the method for `model` has one."""
    check_method(settings)
    return _found(settings, model).with_strength(settings, pace)


def _found(settings: Sparsifying, model: nn.Module) -> type[Method]:
    kinds = (kind for kinds in _METHODS.values() for kind in kinds if kind is not ORDINARY)
    kind = next((kind for kind in kinds if kind.matches(model)), ORDINARY)
    found = _METHODS[settings.method]
    if kind not in found:
        owners = " and ".join(owner.name for owner in found)
        mismatch = f"method {settings.method} is for {owners} networks; {type(model).__name__} is {kind.name}"
        raise SparsityError(f"{mismatch}: choose one of {', '.join(method_names(kind))}")
    return found[kind]


def check_targets(method: str, target: float | None, asked: dict[str, float]) -> None:
    """Raise, naming the method, unless either a share of channels to remove or a cost is given."""
    if (target is None) == (not asked):
        given = f"got target={target}, macs={asked.get('macs')}"
        raise SparsityError(f"{method} needs either a target or a cost (macs, params, bytes) to cut to; {given}")
    if target is not None:
        require_number("target", target, above=0, high=1)


def check_auto(settings: Sparsifying, norm: str) -> None:
    """Raise if lambda is to be computed for another norm than l1."""
    if norm != "l1" and (settings.strength is None or settings.strength == "auto"):
        raise SparsityError(f"auto is for norm l1; give a number as strength for {norm} (docs/strength.md)")


register_method("plain", Method)
