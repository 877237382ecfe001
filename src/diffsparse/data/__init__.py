"""Data sets, and how their parts become batches."""

from diffsparse.data.dataset import DataSet, DataSummary
from diffsparse.data.factory import DataRequest, names, open_data, register_data
from diffsparse.data.part import Batch, Labelled, Part, Share
from diffsparse.data.tensor_part import TensorPart
from diffsparse.data.transform import Normalisation

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
