"""Text networks of the transformers package."""

from typing import Any

import torch

from tests.compaction.architectures.architecture import Inputs
from tests.compaction.architectures.library import pretrained, text, words

_LENGTHS = ((1, 7), (3, 12), (2, 1), (1, 16))


def _texts(name: str, model: str, config: Any, **more: Any) -> None:
    pretrained(name, model, config, words(), 9, *_LENGTHS, **more)


_texts("BERT", "BertForTokenClassification", lambda t: t.BertConfig(**text()), quick=True)
_texts("RoBERTa", "RobertaForTokenClassification", lambda t: t.RobertaConfig(**text(pad_token_id=1)))
_texts("ALBERT", "AlbertForTokenClassification", lambda t: t.AlbertConfig(**text(embedding_size=16)))
_texts("ELECTRA", "ElectraForTokenClassification", lambda t: t.ElectraConfig(**text(embedding_size=16)))
_texts(
    "DistilBERT",
    "DistilBertForTokenClassification",
    lambda t: t.DistilBertConfig(vocab_size=50, dim=24, hidden_dim=48, n_layers=2, n_heads=2),
)
_texts(
    "SqueezeBERT",
    "SqueezeBertForTokenClassification",
    lambda t: t.SqueezeBertConfig(
        **text(
            embedding_size=24,
            q_groups=2,
            k_groups=2,
            v_groups=2,
            post_attention_groups=1,
            intermediate_groups=2,
            output_groups=2,
        )
    ),
)
_texts(
    "GPT-2",
    "GPT2LMHeadModel",
    lambda t: t.GPT2Config(vocab_size=50, n_embd=24, n_layer=2, n_head=2, n_positions=32, use_cache=False),
    quick=True,
)
_texts(
    "Llama",
    "LlamaForCausalLM",
    lambda t: t.LlamaConfig(**text(num_key_value_heads=1, use_cache=False, max_position_embeddings=32)),
    quick=True,
)
_texts(
    "OPT",
    "OPTForCausalLM",
    lambda t: t.OPTConfig(
        vocab_size=50,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=48,
        word_embed_proj_dim=24,
        max_position_embeddings=32,
        use_cache=False,
    ),
)
_texts("Qwen2", "Qwen2ForCausalLM", lambda t: t.Qwen2Config(**text(num_key_value_heads=2, use_cache=False)))
_texts(
    "CLIP, text",
    "CLIPTextModel",
    lambda t: t.CLIPTextConfig(**text(max_position_embeddings=16, eos_token_id=49)),
    returns=("last_hidden_state",),
)


def _two_texts(generator: torch.Generator, batch: int, size: Any) -> Inputs:
    return {key: torch.randint(3, 50, (batch, size), generator=generator) for key in ("input_ids", "decoder_input_ids")}


pretrained(
    "T5",
    "T5ForConditionalGeneration",
    lambda t: t.T5Config(vocab_size=50, d_model=24, d_kv=12, d_ff=48, num_layers=2, num_heads=2, use_cache=False),
    _two_texts,
    9,
    *_LENGTHS,
)
