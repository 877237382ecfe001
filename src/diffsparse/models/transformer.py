"""Small transformers, built from configurations of the library transformers: for texts, languages and images."""

from typing import Any

from torch import Tensor, nn

from diffsparse.errors import SparsityError, import_extra, require_number, require_whole

HEAD_SIZE = 32
"""Width per head; a feed-forward block is four times as wide as the network."""
PAD = 0
"""The token behind the end of a text, which nothing attends to."""


def transformers_library(network: str) -> Any:
    """The library transformers, imported now; raises, with the name of the extra, if it is not installed."""
    return import_extra("transformers", f"{network} is built with transformers", "transformers")


def scaled_width(multiplier: float, heads: int) -> int:
    """The width of a network whose heads have `multiplier` times the usual size."""
    each = int(require_number("multiplier", multiplier, above=0, high=10) * HEAD_SIZE)
    if each < 1:
        raise SparsityError(f"the width multiplier {multiplier:g} leaves nothing of a head of size {HEAD_SIZE}")
    return each * require_whole("heads", heads, low=1)


class TextClassifier(nn.Module):
    """A BERT that chooses a class for a text, read off its first token; called `bert-mini`.

    Padding is masked. Needs the `transformers` extra, as do the other networks here.

    Args:
        num_classes: size of the output.
        vocabulary: how many tokens there are; 0 is padding.
        length: the most tokens of a text.
        multiplier: factor on the size of a head, and with it on all widths.
        layers: number of blocks.
        heads: of each block; the width of the network is 32 per head.
        dropout: wherever BERT has it.

    Example:
        >>> import torch
        >>> TextClassifier(2, length=16, heads=2, layers=1)(torch.ones(3, 16, dtype=torch.int64)).shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        num_classes: int,
        *,
        vocabulary: int = 256,
        length: int = 256,
        multiplier: float = 1.0,
        layers: int = 4,
        heads: int = 4,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        library, width = transformers_library("bert-mini"), scaled_width(multiplier, heads)
        config = library.BertConfig(
            num_labels=require_whole("num_classes", num_classes, low=1),
            vocab_size=require_whole("vocabulary", vocabulary, low=2),
            pad_token_id=PAD,
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=require_whole("layers", layers, low=1),
            num_attention_heads=heads,
            max_position_embeddings=require_whole("length", length, low=1),
            type_vocab_size=1,
            hidden_dropout_prob=require_number("dropout", dropout, low=0, high=1),
            attention_probs_dropout_prob=dropout,
        )
        self.network = library.BertForSequenceClassification(config)

    def forward(self, tokens: Tensor) -> Tensor:
        """(N, length) tokens to (N, num_classes) logits."""
        # a mask of four dimensions is taken as it is; with two, the library would branch on its content
        mask = (tokens != PAD)[:, None, None]
        logits: Tensor = self.network(input_ids=tokens, attention_mask=mask).logits
        return logits


class LanguageModel(nn.Module):
    """A GPT-2 that predicts the next token at every position, called `gpt-mini`; arguments as for `TextClassifier`.

    Example:
        >>> import torch
        >>> LanguageModel(length=16, heads=2, layers=1)(torch.ones(3, 16, dtype=torch.int64)).shape
        torch.Size([3, 16, 256])
    """

    def __init__(
        self,
        *,
        vocabulary: int = 256,
        length: int = 256,
        multiplier: float = 1.0,
        layers: int = 4,
        heads: int = 4,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        library, width = transformers_library("gpt-mini"), scaled_width(multiplier, heads)
        require_number("dropout", dropout, low=0, high=1)
        config = library.GPT2Config(
            vocab_size=require_whole("vocabulary", vocabulary, low=2),
            n_positions=require_whole("length", length, low=1),
            n_embd=width,
            n_inner=4 * width,
            n_layer=require_whole("layers", layers, low=1),
            n_head=heads,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            bos_token_id=None,
            eos_token_id=None,
        )
        self.network = library.GPT2LMHeadModel(config)

    def forward(self, tokens: Tensor) -> Tensor:
        """(N, length) tokens to (N, length, vocabulary) logits of the token behind each."""
        logits: Tensor = self.network(input_ids=tokens, use_cache=False).logits
        return logits


class VisionTransformer(nn.Module):
    """A ViT for small images, called `vit-tiny`; width, layers and dropout as for `TextClassifier`.

    Args:
        num_classes: size of the output.
        in_channels: channels of the image.
        image_size: width and height of the image.
        patch: width and height of what becomes one token.
        multiplier: factor on the size of a head, and with it on all widths.
        layers: number of blocks.
        heads: of each block.
        dropout: wherever ViT has it.

    Example:
        >>> import torch
        >>> VisionTransformer(10, layers=1)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        num_classes: int,
        *,
        in_channels: int = 3,
        image_size: int = 32,
        patch: int = 4,
        multiplier: float = 1.0,
        layers: int = 6,
        heads: int = 4,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        library, width = transformers_library("vit-tiny"), scaled_width(multiplier, heads)
        config = library.ViTConfig(
            num_labels=require_whole("num_classes", num_classes, low=1),
            num_channels=require_whole("in_channels", in_channels, low=1),
            image_size=require_whole("image_size", image_size, low=1),
            patch_size=require_whole("patch", patch, low=1, high=image_size),
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=require_whole("layers", layers, low=1),
            num_attention_heads=heads,
            hidden_dropout_prob=require_number("dropout", dropout, low=0, high=1),
            attention_probs_dropout_prob=dropout,
        )
        self.network = library.ViTForImageClassification(config)

    def forward(self, images: Tensor) -> Tensor:
        """(N, in_channels, image_size, image_size) images to (N, num_classes) logits."""
        logits: Tensor = self.network(pixel_values=images).logits
        return logits
