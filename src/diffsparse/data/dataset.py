"""A data set: its parts, and what a model needs to know about them."""

from collections.abc import Mapping
from dataclasses import dataclass

from diffsparse.data.part import Labelled, Part


@dataclass(frozen=True, kw_only=True)
class DataSummary:
    """A table that describes a data set, one row per part."""

    headings: tuple[str, ...]
    """What the cells of a row are."""
    rows: Mapping[str, tuple[str, ...]]
    """The cells of each part."""
    caption: str | None = None
    """A sentence below the table."""


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """Parts to train and test on, the shape of an input and the number of outputs."""

    name: str
    """Its name on the command line."""
    train: Part
    """The entries to train on."""
    test: Part
    """Entries that training never sees."""
    input_shape: tuple[int, ...]
    """Shape of one input, for example (3, 32, 32)."""
    num_outputs: int
    """The number of classes, or of values to predict."""
    validation: Part | None = None
    """Entries to choose settings with, if the data set has any."""
    task: str = "classification"
    """The registered task that is learned from it."""
    classes: tuple[str, ...] = ()
    """Names of the classes, if known."""

    def summary(self) -> DataSummary:
        """What `diffsparse data` prints; override it if your data set is not made of images and classes."""
        shape = " x ".join(map(str, self.input_shape))
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        return DataSummary(
            headings=("images", "classes", "shape", "fewest per class", "most per class"),
            rows={
                name: (f"{len(part):,}", str(self.num_outputs), shape, *self._class_sizes(part))
                for name, part in parts.items()
                if part is not None
            },
        )

    def _class_sizes(self, part: Part) -> tuple[str, str]:
        """The number of entries in the smallest and in the largest class."""
        if not isinstance(part, Labelled):
            return "-", "-"
        counts = part.labels.bincount(minlength=self.num_outputs)
        return f"{int(counts.min()):,}", f"{int(counts.max()):,}"
