"""Transformers and other networks without batch norm, as tiny configurations of a library and written by hand."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from tests.compaction.architectures.architecture import Architecture, Inputs
from tests.compaction.architectures.library import Draw, library, numbers, pixels
from tests.gating.transformers_zoo import NanoGpt

HEADS, LAYERS = 4, 3
SUBJECTS: dict[str, Architecture] = {}

_SIZES = {"hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 24}
_TEXT = {"vocab_size": 30, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_LENGTHS = ((1, 4), (3, 11))
_STATES = ("last_hidden_state",)


def _add(name: str, build: Callable[[], nn.Module], draw: Draw, size: Any, *others: tuple[int, Any]) -> None:
    SUBJECTS[name] = Architecture(name=name, build=build, draw=draw, size=size, others=others)


class Returned(nn.Module):
    """A model of the library that returns only these tensors, or what it returns if that is a tensor.

    Where all but one position is dropped behind the last layer, states are returned: compaction is about channels.
    """

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, **inputs: Any) -> Any:
        out = self.model(**inputs)
        return out if isinstance(out, Tensor) else [attrgetter(name)(out) for name in self.names]


def _library(
    name: str, model: str, config: str, draw: Draw, size: Any, *others: tuple[int, Any], **settings: Any
) -> None:
    returns = settings.pop("returns", ("logits",))

    def build() -> nn.Module:
        package = library()
        return Returned(getattr(package, model)(getattr(package, config)(**settings)), returns)

    _add(name, build, draw, size, *others)


def _tokens(generator: torch.Generator, batch: int, size: int) -> Tensor:
    return torch.randint(3, 30, (batch, size), generator=generator)


def masked(generator: torch.Generator, batch: int, size: Any) -> Inputs:
    """Tokens, and if there are three samples or more, a mask that leaves out the end of the first."""
    given: dict[str, Any] = {"input_ids": _tokens(generator, batch, size)}
    if batch > 2:
        given["attention_mask"] = torch.ones_like(given["input_ids"])
        given["attention_mask"][0, size // 2 :] = 0
    return given


def _two(generator: torch.Generator, batch: int, size: Any) -> Inputs:
    return {**dict(masked(generator, batch, size)), "decoder_input_ids": _tokens(generator, batch, max(size - 2, 1))}


def _heard(generator: torch.Generator, batch: int, size: Any) -> Inputs:
    sound = torch.randn(batch, 8, 24, generator=generator, dtype=torch.float64)
    return {"input_features": sound, "decoder_input_ids": _tokens(generator, batch, size)}


def _seen_and_read(generator: torch.Generator, batch: int, size: Any) -> Inputs:
    image = torch.randn(batch, 3, 16, 16, generator=generator, dtype=torch.float64)
    return {"pixel_values": image, **dict(masked(generator, batch, size))}


def _texts(name: str, model: str, config: str, draw: Draw = masked, **settings: Any) -> None:
    _library(name, model, config, draw, 7, *_LENGTHS, **{**_TEXT, **settings})


_texts("BERT", "BertForTokenClassification", "BertConfig", **_SIZES)
_texts("RoBERTa", "RobertaForTokenClassification", "RobertaConfig", **_SIZES)
_texts(
    "DistilBERT",
    "DistilBertForTokenClassification",
    "DistilBertConfig",
    dim=16,
    hidden_dim=24,
    n_layers=LAYERS,
    n_heads=HEADS,
)
_gpt2 = {"n_embd": 16, "n_layer": LAYERS, "n_head": HEADS, "n_inner": 24, "n_positions": 128, "use_cache": False}
_texts("GPT-2", "GPT2LMHeadModel", "GPT2Config", **{**_gpt2, "pad_token_id": None})
_llama = {**_SIZES, "use_cache": False}
_texts("Llama", "LlamaForCausalLM", "LlamaConfig", **_llama)
_grouped = {**_llama, "num_attention_heads": 2 * HEADS, "num_key_value_heads": HEADS}
_texts("Llama, grouped queries", "LlamaForCausalLM", "LlamaConfig", **_grouped)
_texts("Qwen2", "Qwen2ForCausalLM", "Qwen2Config", **_grouped)
_t5 = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": LAYERS, "num_heads": HEADS, "use_cache": False}
_texts("T5", "T5ForConditionalGeneration", "T5Config", _two, **_t5, decoder_start_token_id=0)
_library(
    "Whisper",
    "WhisperForConditionalGeneration",
    "WhisperConfig",
    _heard,
    6,
    (1, 3),
    (3, 9),
    **_TEXT,
    num_mel_bins=8,
    d_model=16,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=HEADS,
    decoder_attention_heads=HEADS,
    encoder_ffn_dim=24,
    decoder_ffn_dim=24,
    max_source_positions=12,
    max_target_positions=16,
    use_cache=False,
    decoder_start_token_id=1,
)
_library(
    "CLIP",
    "CLIPModel",
    "CLIPConfig",
    _seen_and_read,
    7,
    *_LENGTHS,
    returns=("text_model_output.last_hidden_state", "vision_model_output.last_hidden_state"),
    text_config={**_TEXT, **_SIZES, "max_position_embeddings": 16},
    vision_config={**_SIZES, "image_size": 16, "patch_size": 4},
    projection_dim=8,
)
_images = {**_SIZES, "image_size": 16, "patch_size": 8}
_library("ViT", "ViTModel", "ViTConfig", pixels(), 16, (1, 16), (3, 16), **_images, returns=_STATES)
_library("DeiT", "DeiTModel", "DeiTConfig", pixels(), 16, (1, 16), (3, 16), **_images, returns=_STATES)
_stages = {"hidden_sizes": [8, 16], "depths": [2, 2], "num_stages": 2}
_library(
    "ConvNeXt",
    "ConvNextForImageClassification",
    "ConvNextConfig",
    pixels(),
    32,
    (1, 48),
    (3, 33),
    **_stages,
    layer_scale_init_value=0.5,
)
_library(
    "ConvNeXtV2", "ConvNextV2ForImageClassification", "ConvNextV2Config", pixels(), 32, (1, 48), (3, 33), **_stages
)
_swin = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [4, 4], "window_size": 4}
_library("Swin", "SwinForImageClassification", "SwinConfig", pixels(), 32, (1, 32), (3, 32), **_swin)
_library(
    "SegFormer",
    "SegformerForSemanticSegmentation",
    "SegformerConfig",
    pixels(),
    32,
    (1, 64),
    (3, 33),
    depths=[2, 1, 1, 1],
    sr_ratios=[2, 1, 1, 1],
    hidden_sizes=[16, 16, 16, 16],
    num_attention_heads=[4, 4, 4, 4],
    mlp_ratios=[2, 2, 2, 2],
    decoder_hidden_size=12,
)
_library(
    "wav2vec2",
    "Wav2Vec2ForCTC",
    "Wav2Vec2Config",
    numbers("input_values"),
    200,
    (1, 160),
    (3, 243),
    **{**_SIZES, "vocab_size": 12, "pad_token_id": 0},
    conv_dim=(8, 8),
    conv_stride=(5, 2),
    conv_kernel=(10, 3),
    num_conv_pos_embeddings=8,
    num_conv_pos_embedding_groups=4,
)
_library(
    "HiFi-GAN",
    "SpeechT5HifiGan",
    "SpeechT5HifiGanConfig",
    numbers("spectrogram", 12),
    10,
    (1, 7),
    (3, 14),
    model_in_dim=12,
    upsample_initial_channel=32,
    upsample_rates=[4, 4],
    upsample_kernel_sizes=[8, 8],
    resblock_kernel_sizes=[3, 5],
    resblock_dilation_sizes=[[1, 3], [1, 3]],
)


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, HEADS, 24, batch_first=True)
    return nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)


def _encoded(generator: torch.Generator, batch: int, size: Any) -> Inputs:
    given: dict[str, Any] = {"src": torch.randn(batch, size, 16, generator=generator, dtype=torch.float64)}
    if batch > 2:
        given["src_key_padding_mask"] = torch.zeros(batch, size, dtype=torch.bool)
        given["src_key_padding_mask"][0, size // 2 :] = True
    return given


_add("nn.TransformerEncoder", _encoder, _encoded, 7, *_LENGTHS)
_add("nanoGPT", lambda: NanoGpt(LAYERS), lambda g, b, n: (_tokens(g, b, n),), 7, *_LENGTHS)
