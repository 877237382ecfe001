"""Networks over time."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.compaction.architectures.architecture import image, written
from tests.compaction.architectures.layers import unit


class Crnn(nn.Module):
    """Convolutions, columns as steps, two bidirectional LSTM layers; sequence first."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            unit(1, 16), nn.MaxPool2d(2), unit(16, 32), nn.MaxPool2d((2, 1)), unit(32, 48), nn.MaxPool2d((4, 1))
        )
        self.rnn, self.head = nn.LSTM(48, 24, num_layers=2, bidirectional=True), nn.Linear(48, 11)

    def forward(self, x: Tensor) -> Tensor:
        steps, _ = self.rnn(self.features(x).squeeze(2).permute(2, 0, 1))
        y: Tensor = self.head(steps)
        return y


_LINES = ((1, (16, 32)), (3, (16, 40)), (2, (16, 21)), (1, (16, 64)))
written("CRNN", channels=1, size=(16, 32), others=_LINES, quick=True)(Crnn)


class ConformerBlock(nn.Module):
    """Half a feed-forward block, attention, the convolution with a GLU, half a feed-forward block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = self.feed_forward(width), self.feed_forward(width)
        self.norm, self.attend = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.ahead = nn.LayerNorm(width)
        self.wide = nn.Conv1d(width, 2 * width, 1)
        self.depthwise = nn.Conv1d(width, width, 5, padding=2, groups=width)
        self.between, self.point = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)

    @staticmethod
    def feed_forward(width: int) -> nn.Module:
        layers = {"norm": nn.LayerNorm(width), "fc1": nn.Linear(width, 4 * width), "act": nn.SiLU()}
        block = nn.Sequential()
        for name, layer in {**layers, "fc2": nn.Linear(4 * width, width)}.items():
            block.add_module(name, layer)
        return block

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.first(x)
        y = self.norm(x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        y = F.glu(self.wide(self.ahead(x).transpose(1, 2)), dim=1)
        x = x + self.point(F.silu(self.between(self.depthwise(y)))).transpose(1, 2)
        return x + 0.5 * self.last(x)


class Conformer(nn.Module):
    """A convolution over time and two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv1d(8, 24, 3, 2, 1), nn.BatchNorm1d(24)
        self.blocks, self.head = nn.ModuleList([ConformerBlock(24), ConformerBlock(24)]), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x))).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.head(x)
        return y


written("Conformer (glu)", channels=8, size=(40,), quick=True)(Conformer)


class WaveLayer(nn.Module):
    """A dilated causal convolution with a gate; a residual and a skip output."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.conv, self.norm = nn.Conv1d(width, 2 * width, 2, dilation=dilation), nn.BatchNorm1d(2 * width)
        self.residual, self.skip = nn.Conv1d(width, width, 1), nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.norm(self.conv(F.pad(x, (self.dilation, 0)))).chunk(2, dim=1)
        y = torch.tanh(a) * torch.sigmoid(b)
        return x + self.residual(y), self.skip(y)


class WaveNet(nn.Module):
    """Dilations of 1, 2, 4 and 8; the skips are added."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(4, 24, 1)
        self.layers = nn.ModuleList([WaveLayer(24, 2**i) for i in range(4)])
        self.norm, self.head = nn.BatchNorm1d(24), nn.Conv1d(24, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.stem(x), torch.zeros(())
        for layer in self.layers:
            x, skip = layer(x)
            total = total + skip
        y: Tensor = self.head(F.relu(self.norm(total)))
        return y


written("WaveNet", channels=4, size=(40,))(WaveNet)


class Shift(nn.Module):
    """Some channels come from the frame before, some from the one after."""

    def __init__(self, body: nn.Module, frames: int) -> None:
        super().__init__()
        self.body, self.frames = body, frames

    def forward(self, x: Tensor) -> Tensor:
        nt, c, h, w = x.shape
        x = x.view(nt // self.frames, self.frames, c, h, w)
        fold, out = c // 8, torch.zeros_like(x)
        out[:, :-1, :fold] = x[:, 1:, :fold]
        out[:, 1:, fold : 2 * fold] = x[:, :-1, fold : 2 * fold]
        out[:, :, 2 * fold :] = x[:, :, 2 * fold :]
        y: Tensor = self.body(out.view(nt, c, h, w))
        return y


class TsmBlock(nn.Module):
    """A residual block whose first convolution sees shifted channels."""

    def __init__(self, width: int, frames: int) -> None:
        super().__init__()
        self.body = nn.Sequential(Shift(unit(width, width), frames), unit(width, width, 3, None))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.body(x))


class Tsm(nn.Module):
    """Frames in the batch; the mean over them at the end."""

    def __init__(self, frames: int = 4) -> None:
        super().__init__()
        self.frames, self.stem = frames, unit(3, 32, stride=2)
        self.blocks, self.head = nn.Sequential(TsmBlock(32, frames), TsmBlock(32, frames)), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(self.blocks(self.stem(x.flatten(0, 1))).mean((2, 3)))
        return x.view(-1, self.frames, x.shape[1]).mean(1)


def _film(generator: torch.Generator, batch: int, size: tuple[int, int]) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 4, 3, *size, generator=generator, dtype=torch.float64),)


written("TSM", size=(16, 16), draw=_film, quick=True)(Tsm)


class Cell(nn.Module):
    """One step of a ConvLSTM."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width, self.gates = width, nn.Conv2d(inputs + width, 4 * width, 3, padding=1)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, c = state
        i, f, o, g = self.gates(torch.cat([x, h], dim=1)).chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class ConvLstm(nn.Module):
    """An encoder with batch norms for each frame, a cell over the frames, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(unit(3, 24, stride=2), unit(24, 24))
        self.cell, self.head = Cell(24, 16), nn.Sequential(unit(16, 16), nn.Conv2d(16, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        first = self.encoder(x[:, 0])
        h = c = first.new_zeros(first.shape[0], self.cell.width, *first.shape[2:])
        for step in range(x.shape[1]):
            h, c = self.cell(self.encoder(x[:, step]), (h, c))
        y: Tensor = self.head(h)
        return y


written("ConvLSTM", size=(16, 16), draw=_film, quick=True)(ConvLstm)


class Gru(nn.Module):
    """Convolutions over time, a GRU, and its last state; batch first."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(6, 32, 5, padding=2), nn.BatchNorm1d(32)
        self.rnn, self.after, self.head = nn.GRU(32, 16, batch_first=True), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        steps, _ = self.rnn(F.relu(self.norm(self.conv(x))).transpose(1, 2))
        y: Tensor = self.head(self.after(steps[:, -1]))
        return y


written("Convolutions and a GRU", draw=image(6), size=(24,))(Gru)
