"""Networks of the paper, and smaller ones for tests and demos."""

from diffsparse.models.factory import Family, create, names, register_family
from diffsparse.models.postactivation import MobileNetV1, ResNet
from diffsparse.models.preactivation import DenseNet, PreActivationResNet, PreResNet
from diffsparse.models.transformer import VisionTransformer

__all__ = [
    "DenseNet",
    "Family",
    "MobileNetV1",
    "PreActivationResNet",
    "PreResNet",
    "ResNet",
    "VisionTransformer",
    "create",
    "names",
    "register_family",
]
