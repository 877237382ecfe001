"""Mixed precision with a scaler, clipping, OneCycle and a moving average of the weights, in a plain loop."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import diffsparse as ds

torch.manual_seed(0)
x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
x, epochs = x.float() / 16, 10
loader = DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=100, shuffle=True)
model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
steps = epochs * len(loader)
budget = ds.Budget(ds.sparsify(model, start=1.0), x[:2], macs=0.25, steps=steps)  # diffsparse
average = ds.MovingAverage(model, decay=0.98)  # average
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=steps)
scaler = torch.amp.GradScaler("cpu")
for _ in range(epochs):
    for images, labels in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(images), labels) + budget.penalty()  # diffsparse
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        if budget.step(optimizer):  # diffsparse
            average.follow(budget.small)  # average
        average.update(model)  # average
average.calibrate(images for images, _ in loader)  # average
with torch.no_grad():
    for name, net in {"model": model, "average": average.model}.items():
        print(f"{name}: accuracy {(net.eval()(x[1400:]).argmax(1) == y[1400:]).float().mean():.1%}, {net[0]}")
