"""Small networks without batch norm, each with an example of its inputs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEADS, NEURONS = 4, 24


class Block(nn.Module):
    """A GPT block as people write it: one projection for queries, keys and values, attention written out."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, NEURONS), nn.Linear(NEURONS, width)
        self.heads = HEADS

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (t.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-2, -1) / k.size(-1) ** 0.5
        past = torch.ones(length, length, dtype=torch.bool).tril()
        mixed = scores.masked_fill(~past, float("-inf")).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).contiguous().view(batch, length, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class NanoGpt(nn.Module):
    """Its output layer shares the table of embeddings."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(30, 16), nn.Embedding(32, 16)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(blocks)), nn.LayerNorm(16)
        self.head = nn.Linear(16, 30, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class PlainConvolutions(nn.Module):
    """A group norm binds two channels each, a depthwise convolution none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8)
        self.second, self.depthwise = nn.Conv2d(8, 12, 3), nn.Conv2d(12, 12, 3, groups=12)
        self.third, self.last = nn.Conv2d(12, 6, 1), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.norm(self.first(x)).relu()).relu()
        return self.last(self.third(self.depthwise(x).relu()).mean((2, 3)).relu())


def encoder() -> tuple[nn.Module, Any]:
    layer = nn.TransformerEncoderLayer(16, HEADS, NEURONS, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(2, 7, 16)


def _ids(*shape: int) -> Tensor:
    return torch.randint(30, shape)


def _built(kind: str, config: str, example: dict[str, Any], **options: Any) -> tuple[nn.Module, Any]:
    transformers = pytest.importorskip("transformers")
    return getattr(transformers, kind)(getattr(transformers, config)(**options)), example


_TEXT = {"vocab_size": 30, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": NEURONS}


def bert() -> tuple[nn.Module, Any]:
    return _built("BertModel", "BertConfig", {"input_ids": _ids(2, 7)}, **_TEXT, **_SIZES)


def gpt2() -> tuple[nn.Module, Any]:
    example = {"input_ids": _ids(2, 7), "use_cache": False}
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": HEADS, "n_inner": NEURONS, "n_positions": 64}
    return _built("GPT2LMHeadModel", "GPT2Config", example, **{**_TEXT, "pad_token_id": None}, **sizes)


def llama(key_value_heads: int = HEADS) -> tuple[nn.Module, Any]:
    example = {"input_ids": _ids(2, 7), "use_cache": False}
    return _built("LlamaForCausalLM", "LlamaConfig", example, **_TEXT, **_SIZES, num_key_value_heads=key_value_heads)


def t5() -> tuple[nn.Module, Any]:
    example = {"input_ids": _ids(2, 7), "decoder_input_ids": _ids(2, 5), "use_cache": False}
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": NEURONS, "num_layers": 2, "num_heads": HEADS}
    options = {**_TEXT, **sizes, "decoder_start_token_id": 0}
    return _built("T5ForConditionalGeneration", "T5Config", example, **options)


def vit() -> tuple[nn.Module, Any]:
    example = {"pixel_values": torch.randn(2, 3, 16, 16)}
    return _built("ViTForImageClassification", "ViTConfig", example, **_SIZES, image_size=16, patch_size=4)


def convnext() -> tuple[nn.Module, Any]:
    example = {"pixel_values": torch.randn(2, 3, 32, 32)}
    sizes = {"hidden_sizes": [8, 16], "depths": [2, 2], "num_stages": 2, "layer_scale_init_value": 0.5}
    return _built("ConvNextForImageClassification", "ConvNextConfig", example, **sizes)


ZOO: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "nano-gpt": lambda: (NanoGpt(), _ids(2, 7)),
    "encoder": encoder,
    "convolutions": lambda: (PlainConvolutions(), torch.randn(2, 3, 12, 12)),
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "llama-grouped": lambda: llama(2),
    "t5": t5,
    "vit": vit,
    "convnext": convnext,
}


def built(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Any]:
    """A network of the zoo with weights that are not tiny, in eval mode, and its example."""
    torch.manual_seed(0)
    model, example = ZOO[name]()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.kaiming_normal_(parameter)
    return model.to(dtype).eval(), as_dtype(example, dtype)


def as_dtype(example: Any, dtype: torch.dtype) -> Any:
    if isinstance(example, dict):
        return {key: as_dtype(value, dtype) for key, value in example.items()}
    return example.to(dtype) if isinstance(example, Tensor) and example.is_floating_point() else example


def answer(model: nn.Module, example: Any) -> Tensor:
    """The first tensor that the model returns."""
    with torch.no_grad():
        output = model(**example) if isinstance(example, dict) else model(example)
    return output if isinstance(output, Tensor) else output[0]
