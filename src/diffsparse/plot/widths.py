"""How wide the layers of a network are, before and after it became small."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import nn
from torch.nn.modules.conv import _ConvNd

from diffsparse.errors import SparsityError
from diffsparse.plot.picture import blank_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#c7c7c7", "#4477aa", "#cc6677", "#228833", "#aa3377")


def layer_widths(model: nn.Module) -> dict[str, int]:
    """Outputs of every convolution and linear layer, by name.

    Example:
        >>> layer_widths(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 2)))
        {'0': 8, '2': 2}
    """
    layers = ((name, layer) for name, layer in model.named_modules() if isinstance(layer, _ConvNd | nn.Linear))
    return {name: layer.out_channels if isinstance(layer, _ConvNd) else layer.out_features for name, layer in layers}


def draw_widths(widths: Mapping[str, Mapping[str, int]]) -> "Figure":
    """A row of bars per layer, one bar per network; the first has all layers. Needs the `report` extra.

    Args:
        widths: by the name of the network, what `layer_widths` gave; a layer that one does not have is gone.

    Example:
        >>> figure = draw_widths({"whole": {"conv": 8, "head": 2}, "small": {"head": 2}})
        >>> len(figure.axes[0].patches)
        4
    """
    if not widths or not next(iter(widths.values())):
        raise SparsityError("there are no layers whose widths could be drawn")
    layers = list(next(iter(widths.values())))
    figure = blank_figure(7, 1 + 0.18 * len(layers) * len(widths))
    axes = figure.add_subplot()
    thickness = 0.8 / len(widths)
    for number, (name, own) in enumerate(widths.items()):
        places = [place + number * thickness for place in range(len(layers))]
        colour = COLOURS[number % len(COLOURS)]
        axes.barh(places, [own.get(layer, 0) for layer in layers], thickness, label=name, color=colour)
    axes.set_yticks([place + 0.4 - thickness / 2 for place in range(len(layers))], layers, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("outputs of the layer")
    axes.legend()
    return figure
