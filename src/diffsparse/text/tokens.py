"""Bytes as tokens: any text in any language, and no vocabulary to learn or to download."""

import numpy as np
import torch
from torch import Tensor

from diffsparse.models.transformer import PAD

VOCABULARY = 256
START = 1
"""The control character "start of heading" stands before a text; a classifier reads its answer off it."""


def byte_tokens(content: bytes) -> Tensor:
    """(bytes,) uint8."""
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


def padded(texts: list[bytes], length: int) -> Tensor:
    """(texts, length) uint8: START before each; what is too long is cut, and padding fills up what is too short.

    Example:
        >>> padded([b"ab", b"abcdef"], 4).tolist()
        [[1, 97, 98, 0], [1, 97, 98, 99]]
    """
    tokens = torch.full((len(texts), length), PAD, dtype=torch.uint8)
    tokens[:, 0] = START
    for row, text in zip(tokens, texts, strict=True):
        kept = byte_tokens(text[: length - 1])
        row[1 : 1 + len(kept)] = kept
    return tokens
