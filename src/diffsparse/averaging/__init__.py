"""An average of a model in training that understands gates."""

from diffsparse.averaging.average import MovingAverage

__all__ = ["MovingAverage"]
