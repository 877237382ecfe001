"""Forecasting traffic on a graph that is learned: data, model, task, method and report."""

from diffsparse.traffic.data import TrafficDataSet, TrafficFiles, open_traffic, open_traffic_files
from diffsparse.traffic.model import TrafficGCN

__all__ = ["TrafficDataSet", "TrafficFiles", "TrafficGCN", "open_traffic", "open_traffic_files"]
