"""Networks of the paper and small ones for tests and demonstrations."""

from diffsparse.models.densenet import DenseNet
from diffsparse.models.factory import create, names
from diffsparse.models.mobilenet import MobileNetV1
from diffsparse.models.preresnet import PreResNet
from diffsparse.models.resnet import PreActivationResNet, ResNet
from diffsparse.models.traffic import TrafficGCN
from diffsparse.models.wired_mobilenet import WiredMobileNet

__all__ = [
    "DenseNet",
    "MobileNetV1",
    "PreActivationResNet",
    "PreResNet",
    "ResNet",
    "TrafficGCN",
    "WiredMobileNet",
    "create",
    "names",
]
