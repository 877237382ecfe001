"""What a model costs: operations, parameters, memory and time."""

from diffsparse.measure.cost import Cost, count
from diffsparse.measure.latency import Latency, time_interleaved
from diffsparse.measure.measure import measure
from diffsparse.measure.report import CONVENTION, Comparison, Measurement

__all__ = ["CONVENTION", "Comparison", "Cost", "Latency", "Measurement", "count", "measure", "time_interleaved"]
