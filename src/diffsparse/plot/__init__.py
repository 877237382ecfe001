"""Pictures; each function returns a matplotlib figure and opens no window."""

from diffsparse.plot.picture import blank_figure, save_picture
from diffsparse.plot.widths import draw_widths, layer_widths

__all__ = ["blank_figure", "draw_widths", "layer_widths", "save_picture"]
