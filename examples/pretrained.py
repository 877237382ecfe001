"""A ResNet that is already trained: gates start at its scales, and the run goes on with 40 % of the MACs."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from transformers import ResNetConfig, ResNetForImageClassification

import diffsparse as ds

torch.manual_seed(0)
x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
x = F.interpolate(x.float().view(-1, 1, 8, 8) / 16, 16)
sizes = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}
model = ResNetForImageClassification(ResNetConfig(num_channels=1, num_labels=10, **sizes))
batches = torch.randint(1400, (84, 100))


def accuracy() -> str:
    with torch.no_grad():
        right = (model.eval()(x[1400:]).logits.argmax(1) == y[1400:]).float().mean()
    model.train()
    return f"accuracy {right:.1%}, {sum(p.numel() for p in model.parameters())} parameters"


optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for chosen in batches:  # stands for from_pretrained("microsoft/resnet-18")
    optimizer.zero_grad()
    F.cross_entropy(model(x[chosen]).logits, y[chosen]).backward()
    optimizer.step()
print(accuracy())

budget = ds.Budget(ds.sparsify(model), x[:2], macs=0.4, steps=len(batches))  # diffsparse
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
for chosen in batches:
    loss = F.cross_entropy(model(x[chosen]).logits, y[chosen]) + budget.penalty()  # diffsparse
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    budget.step(optimizer)  # diffsparse
print(accuracy())
