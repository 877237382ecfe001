"""Data sets, and how their parts become batches."""

from diffsparse.data.dataset import Batch, DataSet, DataSummary, Labelled, Part, Share
from diffsparse.data.factory import DataRequest, names, open_data, register_data
from diffsparse.data.tensor_part import Normalisation, TensorPart

__all__ = [
    "Batch",
    "DataRequest",
    "DataSet",
    "DataSummary",
    "Labelled",
    "Normalisation",
    "Part",
    "Share",
    "TensorPart",
    "names",
    "open_data",
    "register_data",
]
