"""A stage of a network whose channels are nodes and whose wiring is learned."""

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffsparse.errors import SparsityError, require_whole
from diffsparse.gates.gate import Source, require_own_forward
from diffsparse.wiring.rules import Differentiable, EdgeRule, StageShape

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


class Nodes(nn.Module):
    """What the nodes of one group do before they send: batch norm, ReLU and a 3x3 filter, each node by itself."""

    def __init__(self, count: int, stride: int = 1) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(count)
        self.filter = nn.Conv2d(count, count, 3, stride, 1, groups=count, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        state: Tensor = self.filter(F.relu(self.norm(x)))
        return state


class WiredStage(nn.Module):
    r"""Groups of nodes with weighted edges from each group to any strictly later one of the same stage.

    .. math:: y_v = \sum_{u} w_{u,v}\, x_u, \qquad x_u = \text{filter}_u(\text{relu}(\text{norm}_u(y_u)))

    The input nodes come first, then `groups - 1` interior groups of `outputs` nodes, at last the output nodes, whose
    `y` is the output; the stage behind acts on it. The forward pass goes group by group, one 1x1 convolution each.

    Args:
        inputs: input nodes, the channels of the input.
        outputs: nodes of each other group, the channels of the output.
        stride: of the filters of the input nodes; all others have stride 1.
        groups: groups behind the input nodes.
        edges: the rule that decides on the edges, `Differentiable()` by default.

    Shape: (N, inputs, H, W) to (N, outputs, H / stride, W / stride), rounded up.

    Example:
        >>> stage = WiredStage(4, 8, stride=2, groups=3)
        >>> stage(torch.zeros(2, 4, 6, 6)).shape
        torch.Size([2, 8, 3, 3])
        >>> [tuple(matrix.shape) for matrix in stage.edges()]
        [(8, 4), (8, 12), (8, 20)]
    """

    def __init__(
        self, inputs: int, outputs: int, stride: int = 1, groups: int = 1, edges: EdgeRule | None = None
    ) -> None:
        super().__init__()
        self.shape = StageShape(inputs=inputs, outputs=outputs, groups=groups)
        self.stride = require_whole("stride of a stage", stride, low=1)
        if edges is not None and not isinstance(edges, EdgeRule):
            raise SparsityError(
                f"edges must be a rule such as Differentiable(), TopK(density=0.225), Proximal(strength=2e-3) or "
                f"FixedRandom(density=0.225), got {edges!r}"
            )
        strides = [self.stride, *[1] * (groups - 1)]
        self.nodes = nn.ModuleList(Nodes(n, s) for n, s in zip(self.shape.sources, strides, strict=True))
        self.edges = (Differentiable() if edges is None else edges).edges(self.shape)

    def forward(self, x: Tensor) -> Tensor:
        return _flow(x, self.nodes, [_mixing(matrix) for matrix in self.edges()])

    @torch.no_grad()
    def materialise(self) -> "OrdinaryStage":
        """The same stage with its edges in ordinary convolutions; it shares the nodes and has the same hooks."""
        require_own_forward(self, WiredStage)
        stage = OrdinaryStage(self.nodes, self.edges())
        for mix, weight in zip(stage.mixes, self.edges.weights(), strict=True):
            mix.requires_grad_(weight.requires_grad)
        # not by train(), which would reach the nodes
        stage.training = self.training
        stage.mixes.train(self.training)
        vars(stage).update({key: vars(self)[key].copy() for key in _HOOKS})
        return stage

    def parameter_sources(self) -> dict[str, Source]:
        names = {id(parameter): name for name, parameter in self.named_parameters()}
        return {f"mixes.{i}.weight": Source(names[id(w)]) for i, w in enumerate(self.edges.weights())}

    def extra_repr(self) -> str:
        shape = self.shape
        return f"inputs={shape.inputs}, outputs={shape.outputs}, stride={self.stride}, groups={shape.groups}"


class OrdinaryStage(nn.Module):
    """A stage whose edges are settled: the weights of one 1x1 convolution for each target group."""

    without_maps = True
    """The fast form takes weights, biases and constants of its layers, but no maps."""

    def __init__(self, nodes: nn.ModuleList, matrices: Sequence[Tensor]) -> None:
        super().__init__()
        self.nodes = nodes
        like = next(nodes.parameters())
        self.mixes = nn.ModuleList(_convolution(matrix.to(like.dtype)) for matrix in matrices)

    def forward(self, x: Tensor) -> Tensor:
        return _flow(x, self.nodes, self.mixes)


def _flow(x: Tensor, nodes: Iterable[nn.Module], mixes: Iterable[Callable[[Tensor], Tensor]]) -> Tensor:
    states: list[Tensor] = []
    for group, mix in zip(nodes, mixes, strict=True):
        states.append(group(x))
        x = mix(torch.cat(states, 1))
    return x


def _mixing(matrix: Tensor) -> Callable[[Tensor], Tensor]:
    # gates stay in float32 when the model around them goes to half precision
    return lambda states: F.conv2d(states, matrix.to(states.dtype)[:, :, None, None])


def _convolution(matrix: Tensor) -> nn.Conv2d:
    outputs, inputs = matrix.shape
    conv = nn.Conv2d(inputs, outputs, 1, bias=False, device=matrix.device, dtype=matrix.dtype)
    conv.weight.copy_(matrix[:, :, None, None])
    return conv


def wired_stages(model: nn.Module) -> list[WiredStage]:
    """The wired stages of `model`, in its order; none if it is an ordinary network."""
    return [module for module in model.modules() if isinstance(module, WiredStage)]
