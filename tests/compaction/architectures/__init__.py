"""Many architectures, half dead: is each compacted, exactly, to what is live?

`python -m tests.compaction.architectures` runs all and writes the table. Each family of networks has its own file;
importing one puts its networks on the list.
"""

from tests.compaction.architectures import (  # noqa: F401
    attention,
    branches,
    library_convolutions,
    library_dense,
    library_patches,
    library_sounds,
    library_texts,
    mobile,
    norms,
    readers,
    sequences,
    shapes,
)
from tests.compaction.architectures.architecture import ARCHITECTURES, Architecture
from tests.compaction.architectures.trial import Result, examine

__all__ = ["ARCHITECTURES", "Architecture", "Result", "examine"]
