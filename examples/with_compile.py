"""torch.compile: the compiled model is the same object as before; it compiles once more after it has become small."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import diffsparse as ds

torch.manual_seed(0)
x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
x, epochs = x.float() / 16, 8
loader = DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=100, shuffle=True)
net = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
budget = ds.Budget(ds.sparsify(net, start=1.0), x[:2], macs=0.25, steps=epochs * len(loader))  # diffsparse
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
model = torch.compile(net)

for _ in range(epochs):
    for images, labels in loader:
        loss = F.cross_entropy(model(images), labels) + budget.penalty()  # diffsparse
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        budget.step(optimizer)  # diffsparse

# what you get
with torch.no_grad():
    print(f"accuracy {(model.eval()(x[1400:]).argmax(1) == y[1400:]).float().mean():.1%}, {net[0]}")
