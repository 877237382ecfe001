"""From one integer to a specification."""

import random

from tests.compaction.networks.block import FLAT, SPATIAL
from tests.compaction.networks.specification import BlockSpec, Spec


def specification(seed: int) -> Spec:
    """The network of a seed."""
    rng = random.Random(seed)
    dims = rng.choice([2, 2, 2, 2, 2, 2, 1, 1, 3, 0])
    blocks: list[BlockSpec] = []
    images = [name for name in SPATIAL if name != "flat"]
    for _ in range(rng.randint(2, 6 if dims < 3 else 3) if dims else 0):
        blocks.append({"kind": rng.choice(images)})
    if dims and rng.random() < 0.6:
        blocks.append({"kind": "flat"})
    if not dims or blocks[-1]["kind"] == "flat":
        blocks += [{"kind": rng.choice(list(FLAT))} for _ in range(rng.randint(0, 2) if dims else rng.randint(2, 4))]
    for entry in blocks:
        entry["seed"] = rng.randrange(10**6)
        entry["tap"] = rng.random() < 0.15
        entry["cut"] = rng.choice([None, None, None, "filters", "inputs", "entries", "all"])
    return Spec(
        seed=seed,
        dims=dims,
        channels=rng.choice([1, 2, 3, 4]),
        size=rng.choice([4, 5, 6, 7]) if dims < 3 else 4,
        blocks=tuple(blocks),
        returns=rng.choice(["tensor", "tensor", "tuple", "dict", "dataclass"]),
        training=rng.random() < 0.3,
        round_to=rng.choice([1, 1, 1, 1, 1, 2, 4]),
        fold=rng.random() < 0.15,
    )
