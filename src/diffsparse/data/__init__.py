"""Data sets, and how their parts become batches."""

from diffsparse.data.dataset import DataSet
from diffsparse.data.digits import Split, load_digits
from diffsparse.data.factory import names, open_data
from diffsparse.data.part import Batch, Labelled, Part, Share

__all__ = ["Batch", "DataSet", "Labelled", "Part", "Share", "Split", "load_digits", "names", "open_data"]
