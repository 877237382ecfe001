"""Data sets, and how their parts become batches."""

from diffsparse.data.dataset import DataSet
from diffsparse.data.factory import names, open_data
from diffsparse.data.part import Batch, Labelled, Part, Share

__all__ = ["Batch", "DataSet", "Labelled", "Part", "Share", "names", "open_data"]
