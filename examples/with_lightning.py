"""Lightning: the module stays as it is; a callback steers, makes the network small and keeps its state."""

import lightning
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import diffsparse as ds
from diffsparse.integrations.lightning import BudgetCallback


class Digits(lightning.LightningModule):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def test_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


lightning.seed_everything(0)
x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
data = TensorDataset(x.float() / 16, y)
train, test = (DataLoader(torch.utils.data.Subset(data, part), 100) for part in (range(1400), range(1400, len(x))))
net = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
budget = ds.Budget(ds.sparsify(net, start=1.0), data[:2][0], macs=0.25, steps=8 * len(train))  # diffsparse
callbacks = [BudgetCallback(budget)]  # diffsparse
trainer = lightning.Trainer(max_epochs=8, accelerator="cpu", logger=False, callbacks=callbacks)
trainer.fit(Digits(net), train)
trainer.test(Digits(net), test)
print(net[0])
