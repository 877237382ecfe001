"""Autocast is off where numbers must stay in float32."""

import torch

from diffsparse.functional._precision import full_precision


def test_products_stay_in_float32_on_a_device_with_autocast() -> None:
    matrix = torch.rand(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (matrix @ matrix).dtype == torch.bfloat16
        with full_precision(matrix.device):
            assert (matrix @ matrix).dtype == torch.float32
        assert (matrix @ matrix).dtype == torch.bfloat16


def test_devices_without_autocast_need_nothing() -> None:
    with full_precision(torch.device("meta")):
        assert torch.ones(2, device="meta").dtype == torch.float32
