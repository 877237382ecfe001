"""Forecasting traffic on a graph that is learned: data, model, task, method and report."""

from diffsparse.traffic.data import TrafficDataSet
from diffsparse.traffic.forecast import forecast_scores, mean_relative_error
from diffsparse.traffic.model import TrafficGCN
from diffsparse.traffic.sources import TrafficFiles, open_traffic, open_traffic_files

__all__ = [
    "TrafficDataSet",
    "TrafficFiles",
    "TrafficGCN",
    "forecast_scores",
    "mean_relative_error",
    "open_traffic",
    "open_traffic_files",
]
