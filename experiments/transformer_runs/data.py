"""Data of the three tasks, in memory; a batch is a function of the seed and the step, so nothing has to be resumed."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

PAD, START, UNKNOWN = 0, 1, 2


@dataclass(frozen=True)
class Data:
    """Inputs and targets to learn from and to test on."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    window: int = 0
    """For one long text: the length of a piece of it; the training tensors are the text and the text one token on."""
    mirrored: bool = False
    """Whether images are shifted by one pixel and mirrored at random."""

    def batch(self, size: int, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of one step."""
        draw = torch.Generator().manual_seed(1_000_003 * (seed + 1) + step)
        inputs, targets = self.train
        if self.window:
            starts = torch.randint(len(inputs) - self.window, (size, 1), generator=draw)
            places = starts + torch.arange(self.window)
            return inputs[places], targets[places]
        chosen = torch.randint(len(inputs), (size,), generator=draw)
        images, labels = inputs[chosen], targets[chosen]
        return (_jittered(images, draw) if self.mirrored else images), labels

    def example(self, count: int) -> Tensor:
        """Training inputs to place gates by, always the same."""
        return self.batch(count, seed=2**20, step=0)[0]


def _jittered(images: Tensor, draw: torch.Generator) -> Tensor:
    side = images.shape[-1]
    down, right = torch.randint(3, (2,), generator=draw).tolist()
    images = F.pad(images, (1, 1, 1, 1))[..., down : down + side, right : right + side]
    mirrored = torch.rand(len(images), generator=draw) < 0.5
    return torch.where(mirrored[:, None, None, None], images.flip(-1), images)


def shakespeare(root: Path, length: int) -> Data:
    """One text, character by character; the last tenth is for testing."""
    content = np.frombuffer((root / "text" / "tinyshakespeare.txt").read_bytes(), np.uint8)
    tokens = torch.from_numpy(np.unique(content, return_inverse=True)[1].astype(np.int64))
    cut = int(0.9 * len(tokens))
    train, test = tokens[:cut], tokens[cut:]
    pieces = (len(test) - 1) // length * length
    held_out = test[:pieces].view(-1, length), test[1 : pieces + 1].view(-1, length)
    return Data((train[:-1], train[1:]), held_out, window=length)


def sentences(root: Path, length: int, vocabulary: int) -> Data:
    """SST-2 by words: the most frequent ones of the training part; dev and test part together are for testing."""
    parts = [_read_sentences(root / "text" / f"sst2_{part}.tsv") for part in ("train", "dev", "test")]
    counts = Counter(word for words, _ in parts[0] for word in words)
    known = {word: index + UNKNOWN + 1 for index, (word, _) in enumerate(counts.most_common(vocabulary - UNKNOWN - 1))}

    def tensors(part: list[tuple[list[str], int]]) -> tuple[Tensor, Tensor]:
        tokens = torch.full((len(part), length), PAD)
        for row, (words, _) in zip(tokens, part, strict=True):
            ids = [START, *(known.get(word, UNKNOWN) for word in words)][:length]
            row[: len(ids)] = torch.tensor(ids)
        return tokens, torch.tensor([label for _, label in part])

    return Data(tensors(parts[0]), tensors(parts[1] + parts[2]))


def _read_sentences(path: Path) -> list[tuple[list[str], int]]:
    rows = [line.rsplit("\t", 1) for line in path.read_text().splitlines()]
    return [(sentence.split(), int(label)) for sentence, label in rows]


def images(root: Path, side: int) -> Data:
    """CIFAR-10, averaged to `side` pixels."""
    folder = root / "cifar-10-batches-bin"
    train, labels = _read_images([folder / f"data_batch_{number}.bin" for number in range(1, 6)], side)
    test, test_labels = _read_images([folder / "test_batch.bin"], side)
    mean, spread = train.mean((0, 2, 3), keepdim=True), train.std((0, 2, 3), keepdim=True)
    return Data(((train - mean) / spread, labels), ((test - mean) / spread, test_labels), mirrored=True)


def _read_images(paths: list[Path], side: int) -> tuple[Tensor, Tensor]:
    raw = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, 3073) for path in paths])
    pixels = torch.from_numpy(raw[:, 1:].reshape(-1, 3, 32, 32)).float() / 255
    return F.avg_pool2d(pixels, 32 // side), torch.from_numpy(raw[:, 0]).long()
