"""From training to onnxruntime: a file of safetensors to keep, and a file of ONNX that runs without PyTorch."""

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import diffsparse as ds


def make() -> nn.Sequential:
    first = [nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(24, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(48 * 4, 10))


torch.manual_seed(0)
x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
x = x.float().view(-1, 1, 8, 8) / 16
model = make()
budget = ds.Budget(ds.sparsify(model, start=1.0), x[:2], macs=0.3, steps=80)  # diffsparse
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for chosen in torch.randint(1400, (80, 100)):
    loss = F.cross_entropy(model(x[chosen]), y[chosen]) + budget.penalty()  # diffsparse
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    budget.step(optimizer)  # diffsparse

# what you get
ds.save(budget.small, "digits.safetensors")
loaded = ds.load("digits.safetensors", make())  # in another program: your class and the file are enough
ds.export_onnx(loaded, x[:1], "digits.onnx")  # compared with PyTorch before it is written
session = onnxruntime.InferenceSession("digits.onnx", providers=["CPUExecutionProvider"])
(scores,) = session.run(None, {session.get_inputs()[0].name: x[1400:].numpy()})
print(f"accuracy with onnxruntime {np.mean(scores.argmax(1) == y[1400:].numpy()):.1%}, {loaded[0]}")
