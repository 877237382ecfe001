"""Accelerate: accumulation, mixed precision, DDP and checkpoints as usual; `accelerate launch` works."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import diffsparse as ds
from diffsparse.integrations.accelerate import AcceleratedBudget

torch.manual_seed(0)
acc = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
x, epochs = x.float() / 16, 10
loader = DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=50, shuffle=True)
net = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
steps = epochs * len(loader) // acc.gradient_accumulation_steps // acc.num_processes
budget = AcceleratedBudget(acc, ds.Budget(ds.sparsify(net, start=1.0), x[:2], macs=0.25, steps=steps))  # diffsparse
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
model, optimizer, loader = acc.prepare(net, optimizer, loader)

for _ in range(epochs):
    for images, labels in loader:
        with acc.accumulate(model):
            loss = F.cross_entropy(model(images), labels) + budget.penalty()  # diffsparse
            acc.backward(loss)
            acc.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            budget.step()  # diffsparse
acc.save_state("accelerate-run")  # with the state of the budget; load_state makes model and optimiser small

# what you get
with torch.no_grad():
    acc.print(f"accuracy {(net.eval()(x[1400:]).argmax(1) == y[1400:]).float().mean():.1%}, {net[0]}")
