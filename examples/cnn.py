"""Your own network and your own loop: half of the MACs of a small CNN."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import diffsparse as ds

torch.manual_seed(0)
x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
x = x.float().view(-1, 1, 8, 8) / 16
loader = DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=100, shuffle=True)
epochs = 6

layers = [nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2)]
layers += [nn.Conv2d(24, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(), nn.MaxPool2d(2)]
model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(48 * 4, 10))
budget = ds.Budget(ds.sparsify(model, start=1.0), x[:2], macs=0.5, steps=epochs * len(loader))  # diffsparse
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for _ in range(epochs):
    for images, labels in loader:
        loss = F.cross_entropy(model(images), labels) + budget.penalty()  # diffsparse
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        budget.step(optimizer)  # diffsparse

# what you get
with torch.no_grad():
    right = (model.eval()(x[1400:]).argmax(1) == y[1400:]).float().mean()
print(f"accuracy {right:.1%}, channels {[layer.out_channels for layer in model if isinstance(layer, nn.Conv2d)]}")
print(budget)
ds.save(budget.small, "cnn.safetensors")
