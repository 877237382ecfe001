"""Traffic speeds on road networks."""

from diffsparse.traffic.data.dataset import TrafficDataSet, traffic_data
from diffsparse.traffic.data.open import TRAFFIC_NAMES, TrafficFiles, open_traffic, open_traffic_files
from diffsparse.traffic.data.road_map import read_adjacency, read_distances
from diffsparse.traffic.data.speeds import Speeds, read_speeds, resampled
from diffsparse.traffic.data.windows import TrafficPart

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
