"""Traffic speeds on road networks."""

from diffsparse.data.traffic.dataset import TrafficDataSet, traffic_data
from diffsparse.data.traffic.open import TRAFFIC_NAMES, TrafficFiles, open_traffic, open_traffic_files
from diffsparse.data.traffic.road_map import read_adjacency, read_distances
from diffsparse.data.traffic.speeds import Speeds, read_speeds, resampled
from diffsparse.data.traffic.windows import TrafficPart

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
