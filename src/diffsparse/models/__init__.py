"""Networks of the paper and small ones for tests and demonstrations."""

from diffsparse.models.preresnet import PreResNet

__all__ = ["PreResNet"]
