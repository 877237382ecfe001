"""What fragments in the guides take for granted: code that runs before a block of a page."""

COMMON = """
import torch, diffsparse as ds
from torch import nn
torch.manual_seed(0)
"""

PAGE = {
    "compaction.md": """
class MyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))

    def forward(self, x):
        return self.body(x).mean((2, 3))

model = MyNet()
model.body[1].weight.data[:5] = 0
model = ds.sparsify(model).eval()
x = example_inputs = torch.randn(2, 3, 9, 9)
optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.1, momentum=0.9)
""",
    "training.md": """
model = ds.sparsify(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)))
loader = [(torch.randn(8, 4), None) for _ in range(12)]
example = torch.randn(2, 4)
optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.1)
""",
    "strength.md": """
import math
model = ds.sparsify(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)))
""",
    "speed.md": """
from functools import partial
from types import SimpleNamespace
compact, budget = partial(ds.compact, seconds=0.5), partial(ds.Budget, table="latency.json")
model = nn.Sequential(nn.Linear(256, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Linear(1024, 256))
model = ds.sparsify(model, start=1.0).eval()
x, n, ds = torch.randn(64, 256), 20, SimpleNamespace(compact=compact, Budget=budget)
""",
    "transformers.md": """
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
example, steps = torch.randn(4, 5, 8), 20
""",
}
"""Before the first block; blocks of one page share their names, as for someone who reads on."""

BLOCK = {
    ("budget.md", 1): """
net = ds.sparsify(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)))
budget = ds.Budget(net, torch.randn(2, 4), macs=0.7, steps=1, due=1.0)
optimizer = torch.optim.SGD(ds.parameter_groups(net), lr=0.1)
DistributedDataParallel = lambda module: ("wrapped", module)
""",
    ("budget.md", 2): """
assert model == ("wrapped", net)
checkpoint = {"budget": budget.state_dict(), "model": net.state_dict(), "optimizer": optimizer.state_dict()}
model = ds.sparsify(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)))
budget = ds.Budget(model, torch.randn(2, 4), macs=0.7, steps=1, due=1.0)
optimizer = torch.optim.SGD(ds.parameter_groups(model), lr=0.1)
""",
    ("transformers.md", 1): "small = ds.compact(model.eval(), example)\n",
    ("transformers.md", 2): """
import torch.distributed
from torch.distributed.fsdp import fully_shard

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(2)])

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x

torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
model, steps, sharded = ds.sparsify(Net(), example), 1, []
shard_again = sharded.append
""",
    ("wiring.md", 1): """
from pathlib import Path
from diffsparse.models import create
Path("runs/RUN").mkdir(parents=True)
small = ds.compact(create("wired-mobilenet-0.25", num_classes=10).eval(), torch.randn(1, 3, 32, 32))
ds.save(small, "runs/RUN/compact.safetensors")
""",
    ("wiring.md", 2): "images = torch.randn(2, 3, 32, 32)\n",
}
"""Before one Python block of a page, by its place among them."""

AFTER = {
    "README.md": """
assert budget.cost["macs"] == 0.5
assert (model.eval()(x).argmax(1) == y).float().mean() > 0.95
again = ds.load("net.safetensors", nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2)))
assert torch.equal(again.eval()(x), model(x))
""",
    "budget.md": "assert budget.small is not None and model[0].out_features < 8\n",
    "compaction.md": "assert small.model.body[0].out_channels == 3\n",
    "transformers.md": """
import torch.distributed
torch.distributed.destroy_process_group()
assert sharded == [budget.small.model]
""",
}
"""What must hold at the end of a page."""
