"""Traffic speeds on road networks."""

from diffsparse.traffic.data.dataset import TrafficDataSet, traffic_data
from diffsparse.traffic.data.open import TRAFFIC_NAMES, TrafficFiles, open_traffic, open_traffic_files
from diffsparse.traffic.data.parts import TrafficPart
from diffsparse.traffic.data.reading import Speeds, read_adjacency, read_distances, read_speeds, resampled

__all__ = [
    "Speeds",
    "TRAFFIC_NAMES",
    "TrafficDataSet",
    "TrafficFiles",
    "TrafficPart",
    "open_traffic",
    "open_traffic_files",
    "read_adjacency",
    "read_distances",
    "read_speeds",
    "resampled",
    "traffic_data",
]
