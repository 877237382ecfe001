"""Several processes: torchrun --nproc-per-node 2 examples/with_ddp.py"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import diffsparse as ds

dist.init_process_group("gloo")
torch.manual_seed(0)
x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
data, epochs = TensorDataset(x[:1400].float() / 16, y[:1400]), 8
loader = DataLoader(data, batch_size=50, sampler=DistributedSampler(data))
net = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
budget = ds.Budget(ds.sparsify(net, start=1.0), data[:2][0], macs=0.25, steps=epochs * len(loader))  # diffsparse
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
model = DistributedDataParallel(net)

for epoch in range(epochs):
    loader.sampler.set_epoch(epoch)
    for images, labels in loader:
        loss = F.cross_entropy(model(images), labels) + budget.penalty()  # diffsparse
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model = DistributedDataParallel(net) if budget.step(optimizer) else model  # diffsparse

# what you get
with torch.no_grad():
    right = (net.eval()(x[1400:].float() / 16).argmax(1) == y[1400:]).float().mean()
if dist.get_rank() == 0:
    print(f"accuracy {right:.1%}, {net[0]}")
dist.destroy_process_group()
