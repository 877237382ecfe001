"""What a model costs: operations, parameters, memory and time."""

from diffsparse.measuring.cost import Cost, count, samples
from diffsparse.measuring.latency import Latency, time_interleaved
from diffsparse.measuring.layer_report import LayerReport, by_layer
from diffsparse.measuring.meter import measure
from diffsparse.measuring.report import CONVENTION, Comparison, Measurement

__all__ = [
    "CONVENTION",
    "Comparison",
    "Cost",
    "Latency",
    "LayerReport",
    "Measurement",
    "by_layer",
    "count",
    "measure",
    "samples",
    "time_interleaved",
]
