"""What a plan does to the modules of a model: one class per action."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar

from torch import Tensor, nn

from diffsparse.compaction import adaptors
from diffsparse.compaction.edit import ModelEdit, index_tensor
from diffsparse.compaction.stretch import ConstantMap, MapSize, Stretch, note_shapes
from diffsparse.compaction.tensor_slice import Count, Indices, Widths
from diffsparse.module_tree import runs_in_order
from diffsparse.plain import to_plain


@dataclass(frozen=True, kw_only=True)
class Action:
    """What happens to one module."""

    tag: ClassVar[str]
    """What JSON and the printed plan call it."""
    drops_module: ClassVar[bool] = False
    """Whether the module leaves the tree, with everything in it."""
    for_inference: ClassVar[bool] = False
    """Whether the compact model is then meant for inference, not for training."""

    @property
    def share_of_products(self) -> Fraction:
        """What is left of products between activations that the module itself computes."""
        return Fraction(1)

    def apply(self, edit: ModelEdit, name: str) -> None:
        """Do it to the module `name`, whose tensors are sliced already."""
        raise NotImplementedError

    def within(self, name: str) -> "Action":
        """The same action for a model that holds the planned one as its module `name`."""
        return self

    def to_plain(self) -> dict[str, Any]:
        """The action as plain data, with its tag."""
        return {"action": self.tag, **to_plain(self)}

    def __str__(self) -> str:
        return self.tag


@dataclass(frozen=True, kw_only=True)
class Remove(Action):
    """The module leaves its container, which works without it."""

    tag: ClassVar = "removed"
    drops_module: ClassVar = True

    def apply(self, edit: ModelEdit, name: str) -> None:
        owner, _, key = name.rpartition(".")
        around = edit.modules[owner]
        if runs_in_order(around):
            # whoever else holds it sees what the sequence does
            edit.replace(name, adaptors.PassOn())
        # not `del around[i]`, which would rename the layers behind it
        del around._modules[key]


@dataclass(frozen=True, kw_only=True)
class PassThrough(Action):
    """The module returns its input."""

    tag: ClassVar = "identity"
    drops_module: ClassVar = True

    def apply(self, edit: ModelEdit, name: str) -> None:
        edit.replace(name, adaptors.PassOn())


@dataclass(frozen=True, kw_only=True)
class Emit(Action):
    """What the module emits does not depend on the contents of its input."""

    drops_module: ClassVar = True

    outputs: Widths
    read_only: bool = False
    """Whether nobody writes to the output or holds it, so that one tensor serves all passes."""

    def __str__(self) -> str:
        return f"out {self.outputs[0]} -> {self.outputs[1]}, {self.tag}"


@dataclass(frozen=True, kw_only=True)
class EmitConstant(Emit):
    """The layer emits one number per channel, at any input size."""

    tag: ClassVar = "constant"

    dim: int
    """Where channels lie, counted from the end."""
    window: list[list[Count]] | None = None
    """How the layer changed spatial sizes; None if it did not."""
    transposed: bool = False
    """Whether it was a transposed convolution."""

    def apply(self, edit: ModelEdit, name: str) -> None:
        constant = adaptors.Constant(self.outputs[1], self.dim, self.window, self.transposed, self.read_only)
        edit.replace(name, constant.to(edit.sample(name)))


@dataclass(frozen=True, kw_only=True)
class EmitMap(Emit):
    """The module emits a map that varies with the position, at any input size."""

    tag: ClassVar = "map"

    shape: list[Count]
    """Shape of the table from which the map is made."""
    stretches: list[Stretch | None]
    """How each dimension of the table is stretched; None for one that stays as it is."""
    sizes_of: str | None = None
    """A module around this one whose input tells the sizes; None for the module itself."""

    def apply(self, edit: ModelEdit, name: str) -> None:
        note = None if self.sizes_of is None else note_shapes(edit.modules[self.sizes_of])
        edit.replace(name, ConstantMap(self.shape, self.stretches, note, self.read_only).to(edit.sample(name)))

    def within(self, name: str) -> "Action":
        return self if self.sizes_of is None else replace(self, sizes_of=f"{name}.{self.sizes_of}".rstrip("."))


@dataclass(frozen=True, kw_only=True)
class Slice(Action):
    """The layer loses inputs and outputs; a select in front and an expand behind it fit it to its surroundings."""

    tag: ClassVar = "sliced"

    outputs: Widths
    inputs: Widths | None = None
    """For a layer that mixes its inputs."""
    select: Indices | None = None
    """Positions to take from the input, where it is wider than the layer."""
    expand: Indices | None = None
    """Positions of the layer's outputs, where what follows is wider than the layer."""
    width: Count = 0
    """Channels of the output as others see it."""
    dim: int = 1
    """Where channels lie, counted from the end if negative."""
    adds_bias: bool = False
    """Whether the layer gets a bias that it did not have."""
    groups: Count | None = None
    """Groups after, for a grouped convolution."""
    number: float | None = None
    """What the expand puts between the outputs, if it is one number everywhere."""
    fill: MapSize | None = None
    """What the expand puts between the outputs, if it varies with the position."""
    adds: MapSize | None = None
    """What inputs that are gone did to the outputs, if it varies with the position."""
    rescaled: bool = False
    """Whether outputs are multiplied by a number in its weights, because code scales scores by the width of heads."""

    def within(self, name: str) -> "Action":
        maps = {key: size.within(name) for key in ("fill", "adds") if (size := getattr(self, key)) is not None}
        return replace(self, **maps)

    def apply(self, edit: ModelEdit, name: str) -> None:
        if self.groups is not None:
            edit.modules[name].groups = self.groups  # type: ignore[assignment]
        self._adapt(edit, edit.modules[name], edit.sample(name))

    def _adapt(self, edit: ModelEdit, module: nn.Module, like: Tensor) -> None:
        """Put select, expand and bias on `module`, with the device and dtype of `like`."""
        if self.adds_bias:
            trained = any(parameter.requires_grad for parameter in module.parameters())
            module.bias = nn.Parameter(like.new_zeros(self.outputs[1]), requires_grad=trained)
        if self.select is not None:
            module.register_buffer(adaptors.SELECT, edit.index(self.select, like.device), persistent=False)
            # behind the user's own hooks, which see what goes in and out as the code around the layer does
            module.register_forward_pre_hook(adaptors.SelectInput(self.dim, adaptors.first_of_run(self.select)))
        if self.expand is not None:
            self._expand(edit, module, like, self.expand)
        if self.adds is not None:
            module.register_buffer(adaptors.ADDED, like.new_zeros(self.adds.shape))
            module.register_forward_hook(adaptors.AddMap(tuple(self.adds.stretches)), prepend=True)
        for key, size in ((adaptors.FILL, self.fill), (adaptors.ADDED, self.adds)):
            if size is not None and size.sizes_of is not None:
                vars(module)[adaptors.SIZES_OF[key]] = note_shapes(edit.modules[size.sizes_of])

    def _expand(self, edit: ModelEdit, module: nn.Module, like: Tensor, live: list[int]) -> None:
        """Put an expand on `module`, whose outputs become the channels `live`."""
        source = adaptors.expand_source(live, self.width, self.number is not None)
        module.register_buffer(adaptors.EXPAND, edit.index(live, like.device), persistent=False)
        module.register_buffer(adaptors.SOURCE, index_tensor(source, like.device), persistent=False)
        shape = [self.width] if self.fill is None else self.fill.shape
        module.register_buffer(adaptors.FILL, like.new_zeros(shape))
        expand = adaptors.ExpandOutput(self.dim, self.number, adaptors.first_of_run(live))
        if self.fill is not None:
            expand = adaptors.ExpandIntoMap(self.dim, stretches=tuple(self.fill.stretches))
        module.register_forward_hook(expand, prepend=True)

    def __str__(self) -> str:
        parts = [] if self.inputs is None else [f"in {self.inputs[0]} -> {self.inputs[1]}"]
        parts += [f"out {self.outputs[0]} -> {self.outputs[1]}", *([self.tag] if type(self) is not Slice else [])]
        parts += ["select"] if self.select is not None else []
        parts += [f"expand to {self.width}"] if self.expand is not None else []
        parts += ["rescaled"] if self.rescaled else []
        parts += ["map"] if self.fill is not None or self.adds is not None else []
        return ", ".join(parts + (["new bias"] if self.adds_bias else []))


@dataclass(frozen=True, kw_only=True)
class RaggedSlice(Slice):
    """A grouped convolution whose groups keep different sizes: it becomes a `RaggedConv`."""

    tag: ClassVar = "ragged"

    blocks: list[Widths]
    """Outputs and inputs of each group."""

    def apply(self, edit: ModelEdit, name: str) -> None:
        edit.replace(name, adaptors.RaggedConv(edit.modules[name], self.blocks))
        super().apply(edit, name)


@dataclass(frozen=True, kw_only=True)
class Fold(Slice):
    """The layer in front takes over the scale and shift of a batch norm; an expand may stay behind it."""

    tag: ClassVar = "folded"
    for_inference: ClassVar = True

    def apply(self, edit: ModelEdit, name: str) -> None:
        like = edit.sample(name)
        edit.replace(name, nn.Identity())
        self._adapt(edit, edit.modules[name], like)

    def __str__(self) -> str:
        return super().__str__() if self.outputs[0] != self.outputs[1] else self.tag


@dataclass(frozen=True, kw_only=True)
class SetSizes(Action):
    """Numbers that the module's own code reads are made true: how many heads there are, how wide pieces are."""

    tag: ClassVar = "sizes"

    sizes: dict[str, Widths]
    """By the name of the attribute, its number before and after."""

    def apply(self, edit: ModelEdit, name: str) -> None:
        module = edit.modules[name]
        for key, (_, after) in self.sizes.items():
            if key in vars(module):
                setattr(module, key, after)

    def __str__(self) -> str:
        return ", ".join(f"{key} {before} -> {after}" for key, (before, after) in self.sizes.items())
