"""Networks of the paper, and smaller ones for tests and demos."""

from diffsparse.models.densenet import DenseNet
from diffsparse.models.factory import Family, create, names, register_family
from diffsparse.models.mobilenet import MobileNetV1
from diffsparse.models.preresnet import PreResNet
from diffsparse.models.resnet import PreActivationResNet, ResNet

__all__ = [
    "DenseNet",
    "Family",
    "MobileNetV1",
    "PreActivationResNet",
    "PreResNet",
    "ResNet",
    "create",
    "names",
    "register_family",
]
