"""Pictures; each function returns a matplotlib figure and opens no window."""

from diffsparse.plot.picture import blank_figure, save_picture

__all__ = ["blank_figure", "save_picture"]
