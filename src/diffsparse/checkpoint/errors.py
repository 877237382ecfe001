"""The error of everything that goes wrong between a model and its file."""

from diffsparse.errors import SparsityError


class CheckpointError(SparsityError):
    """A file that cannot be written, read or fitted to a model; the message names the file and the cause."""
