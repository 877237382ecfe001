"""A data set: its parts and what a model must know of them."""

from dataclasses import dataclass

from diffsparse.data.part import Part


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """Parts to train and test on, with the shape of an input and the number of outputs."""

    name: str
    """What it is called on the command line."""
    train: Part
    """The entries to train on."""
    test: Part
    """Entries that training never sees."""
    input_shape: tuple[int, ...]
    """Shape of one input, for example (3, 32, 32)."""
    num_outputs: int
    """How many classes there are, or values to predict."""
    validation: Part | None = None
    """Entries to choose settings with, where the data set sets some apart."""
    task: str = "classification"
    """The registered task that is learned from it."""
    classes: tuple[str, ...] = ()
    """Names of the classes, where known."""
