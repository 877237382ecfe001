"""Random numbers that follow from the position in a run alone."""

import torch


def step_seed(seed: int, position: int, rank: int) -> int:
    """A seed of its own for every step of every process."""
    return ((seed * 1_000_003 + position) * 65_537 + rank) % 2**63


def seed_generators(device: torch.device, seed: int) -> None:
    """Seed the CPU and `device` only; torch.manual_seed, which seeds all devices, takes a millisecond."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type != "cpu":
        torch.manual_seed(seed)
