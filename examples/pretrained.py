"""A ResNet that is already trained: gates start at its scales, and the run goes on with 40 % of the MACs."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset
from transformers import ResNetConfig, ResNetForImageClassification

import diffsparse as ds

torch.manual_seed(0)
x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
x = F.interpolate(x.float().view(-1, 1, 8, 8) / 16, 16)
loader = DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=100, shuffle=True)
sizes = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}
model = ResNetForImageClassification(ResNetConfig(num_channels=1, num_labels=10, **sizes))
epochs = 6


def train(optimizer: torch.optim.Optimizer, budget: ds.Budget | None = None) -> None:
    for _ in range(epochs):
        for images, labels in loader:
            loss = F.cross_entropy(model(images).logits, labels)
            loss = loss + budget.penalty() if budget else loss  # diffsparse
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            _ = budget and budget.step(optimizer)  # diffsparse
    with torch.no_grad():
        right = (model.eval()(x[1400:]).logits.argmax(1) == y[1400:]).float().mean()
    print(f"accuracy {right:.1%}, {sum(p.numel() for p in model.parameters())} parameters")
    model.train()


train(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
budget = ds.Budget(ds.sparsify(model), x[:2], macs=0.4, steps=epochs * len(loader))  # diffsparse
train(torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), budget)
