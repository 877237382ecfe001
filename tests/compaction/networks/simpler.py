"""Steps from a failing network down to a small one."""

from collections.abc import Iterator
from typing import Any

from tests.compaction.networks.build import options
from tests.compaction.networks.specification import Spec


def simpler(spec: Spec) -> Iterator[Spec]:
    """Specifications a little smaller than this one, with everything that blocks draw written out."""
    full = options(spec)
    fields = vars(full)
    for index in range(len(full.blocks)):
        yield Spec(**{**fields, "blocks": full.blocks[:index] + full.blocks[index + 1 :]})
    for key, plain in {"returns": "tensor", "training": False, "round_to": 1, "fold": False}.items():
        if fields[key] != plain:
            yield Spec(**{**fields, key: plain})
    for index, entry in enumerate(full.blocks):
        for key, value in entry.items():
            plain = _PLAIN.get(key.rstrip("0123456789"), value)
            if value != plain:
                changed = {**entry, key: plain}
                yield Spec(**{**fields, "blocks": (*full.blocks[:index], changed, *full.blocks[index + 1 :])})


_PLAIN: dict[str, Any] = {
    **dict.fromkeys(["tap", "bias", "augmented", "shifts"], False),
    **dict.fromkeys(["groups", "stride", "kernel", "dilation", "length"], 1),
    **dict.fromkeys(["norm", "act"], "none"),
    **dict.fromkeys(["cut", "project"]),
    "padding": 0,
    "mode": "zeros",
}
