"""A small book of recipes on the digits, for tests."""

from pathlib import Path

COVER = """
title = "A book"
introduction = "What it is about."
order = ["first", "second", "pictures"]
page = "page.md"
figures = "figures"
group = 4

[accelerator]
name = "a machine"
memory = 1.0
devices = 4
efficiency = 0.5
source = "By guess."
[accelerator.throughput]
digits = 1e9
cifar100 = 1e9

[data.digits]
train = 1348
shape = [1, 8, 8]
outputs = 10
gigabytes = 0.001

[data.cifar100]
train = 50000
shape = [3, 32, 32]
outputs = 100
gigabytes = 0.2
"""

FIRST = """
title = "The first table"
labels = ["tab:first"]
columns = ["channels", "layers", "error", "flops", "params"]
base = "Base"
text = "They differ."

[sizes.small]
seeds = 2
minutes = 1.0
note = "short."
[sizes.small.settings]
model = "preresnet8-0.25"
data = "digits"
epochs = 3
batch_size = 192
hardware = { threads = 1 }

[sizes.paper]
seeds = 1
[sizes.paper.settings]
model = "preresnet8"
data = "digits"
epochs = 10

[[rows]]
name = "Base"
reported = { error = [5.0, 0.1], flops = [100.0] }
settings = { sparsifying = { method = "plain" } }
sizes.small = {}
sizes.paper = {}

[[rows]]
name = "DS"
reported = { error = [6.0, 0.1], flops = [50.0, 1.0] }
settings = { sparsifying = { method = "ds", strength = 0.02 } }
sizes.small = {}

[[rows]]
name = "cut, at once"
reported = { error = [7.0, 0.1] }
settings = { epochs = 2, sparsifying = { method = "slimming", strength = 1e-3, macs = 0.5, retrain_epochs = 1 } }
sizes.small = {}

[[rows]]
name = "quoted"
reported = { error = [5.5] }

[[claims]]
text = "DS is better than a cut"
column = "error"
smaller = "DS"
larger = "cut, at once"
"""

SECOND = """
title = "The second table"
labels = ["tab:second"]
columns = ["error"]
statistic = "median"

[sizes.small]
seeds = 2
[sizes.small.settings]
model = "preresnet8-0.25"
data = "digits"
epochs = 2
batch_size = 192
hardware = { threads = 1 }

[[rows]]
name = "teacher"
settings = { model = "preresnet8-0.5", sparsifying = { method = "plain" } }
sizes.small = {}

[[rows]]
name = "student"
teacher = "teacher"
settings = { sparsifying = { method = "ds", macs = 0.5 } }
sizes.small = {}

[[rows]]
name = "the same as DS"
of = "first/DS"
"""

PICTURES = """
title = "A figure"
labels = ["fig:one"]
[[pictures]]
kind = "file"
table = "first"
rows = ["DS"]
file = "picture.svg"
"""


def write_book(folder: Path, **changed: str) -> Path:
    """Write the book to `folder`, with the text of some of its files changed."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"book": COVER, "first": FIRST, "second": SECOND, "pictures": PICTURES} | changed
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)
    return folder
