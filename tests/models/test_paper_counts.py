"""Every network of the paper has the paper's parameters and multiply-accumulates, to the last digit."""

import pytest
import torch

import diffsparse as ds
from diffsparse.models import create
from tests.models.figures import batch_norms


@pytest.mark.parametrize(
    ("name", "classes", "size", "params", "macs"),
    [
        ("preresnet164", 10, 32, 1_703_258, 247_646_720),
        ("preresnet164", 100, 32, 1_726_388, 247_669_760),
        ("densenet40", 10, 32, 1_059_298, 282_917_328),
        ("densenet40", 100, 32, 1_100_428, 282_958_368),
        ("resnet50", 1000, 224, 25_557_032, 4_089_184_256),
        ("resnet50-preact", 1000, 224, 25_549_352, 4_089_184_256),
        ("mobilenetv1-0.25", 10, 32, 215_642, 3_331_072),
        ("mobilenetv1-0.25", 100, 32, 238_772, 3_354_112),
        ("mobilenetv1-0.5-imagenet", 1000, 224, 1_331_592, 149_497_088),
    ],
)
def test_parameters_and_macs(name: str, classes: int, size: int, params: int, macs: int) -> None:
    # Nothing is computed on the meta device, so this is quick.
    with torch.device("meta"):
        found = ds.measure(create(name, classes), torch.zeros(1, 3, size, size), latency=False)
    assert (found.params, found.macs, found.product_macs) == (params, macs, 0)


@pytest.mark.parametrize(
    ("name", "layers", "channels"),
    [
        ("preresnet164", 163, 12_112),
        ("densenet40", 39, 9_360),
        ("resnet50", 53, 26_560),
        ("resnet50-preact", 49, 22_720),
        ("mobilenetv1-0.25", 27, 2_736),
    ],
)
def test_batch_norms(name: str, layers: int, channels: int) -> None:
    with torch.device("meta"):
        assert batch_norms(create(name)) == (layers, channels)


def test_batch_norms_activations_and_pooling_of_densenet_are_as_many_as_another_counter_finds() -> None:
    with torch.device("meta"):
        found = ds.measure(create("densenet40"), torch.zeros(1, 3, 32, 32), latency=False)
    # What the counter of "Rethinking the value of network pruning" finds, the pooling of transitions added.
    assert found.flops + found.elementwise_flops == 573_304_234
