"""Networks of the transformers package for sound and other series of numbers."""

from typing import Any

import torch

from tests.compaction.architectures.architecture import Inputs
from tests.compaction.architectures.library import numbers, pretrained, text, words

_WAVE = {
    **text(vocab_size=20),
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
}
_SOUNDS = ((1, 400), (3, 480), (2, 333), (1, 640))
pretrained("Wav2Vec2", "Wav2Vec2ForCTC", lambda t: t.Wav2Vec2Config(**_WAVE), numbers("input_values"), 400, *_SOUNDS)
pretrained(
    "Wav2Vec2-Conformer",
    "Wav2Vec2ConformerForCTC",
    lambda t: t.Wav2Vec2ConformerConfig(**_WAVE, conv_depthwise_kernel_size=5, position_embeddings_type="rotary"),
    numbers("input_values"),
    400,
    *_SOUNDS,
)
pretrained("HuBERT", "HubertForCTC", lambda t: t.HubertConfig(**_WAVE), numbers("input_values"), 400, *_SOUNDS)


def _heard(generator: torch.Generator, batch: int, size: Any) -> Inputs:
    sound = torch.randn(batch, 8, 64, generator=generator, dtype=torch.float64)
    return {"input_features": sound, "decoder_input_ids": torch.randint(3, 50, (batch, size), generator=generator)}


pretrained(
    "Whisper",
    "WhisperForConditionalGeneration",
    lambda t: t.WhisperConfig(
        vocab_size=50,
        num_mel_bins=8,
        d_model=24,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_source_positions=32,
        max_target_positions=16,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    ),
    _heard,
    6,
    (1, 6),
    (3, 9),
    (2, 1),
)
pretrained(
    "HiFi-GAN",
    "SpeechT5HifiGan",
    lambda t: t.SpeechT5HifiGanConfig(
        model_in_dim=12,
        upsample_initial_channel=32,
        upsample_rates=[4, 4],
        upsample_kernel_sizes=[8, 8],
        resblock_kernel_sizes=[3, 5],
        resblock_dilation_sizes=[[1, 3], [1, 3]],
    ),
    numbers("spectrogram", 12),
    10,
    (1, 10),
    (3, 14),
    (2, 7),
    (1, 20),
)
pretrained(
    "AST",
    "ASTModel",
    lambda t: t.ASTConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        patch_size=8,
        frequency_stride=8,
        time_stride=8,
        max_length=32,
        num_mel_bins=16,
    ),
    lambda g, b, n: {"input_values": torch.randn(b, n, 16, generator=g, dtype=torch.float64)},
    32,
    (1, 32),
    (3, 32),
    returns=("last_hidden_state",),
)
pretrained(
    "PatchTSMixer",
    "PatchTSMixerForPrediction",
    lambda t: t.PatchTSMixerConfig(
        context_length=32,
        patch_length=8,
        patch_stride=8,
        num_input_channels=3,
        d_model=16,
        num_layers=2,
        prediction_length=8,
        norm_mlp="BatchNorm",
        mode="mix_channel",
        scaling="std",
    ),
    numbers("past_values", 3),
    32,
    (1, 32),
    (3, 32),
    returns=("prediction_outputs",),
)
pretrained(
    "PatchTST",
    "PatchTSTForPrediction",
    lambda t: t.PatchTSTConfig(
        context_length=32,
        patch_length=8,
        patch_stride=8,
        num_input_channels=3,
        d_model=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=32,
        prediction_length=8,
        norm_type="batchnorm",
    ),
    numbers("past_values", 3),
    32,
    (1, 32),
    (3, 32),
    returns=("prediction_outputs",),
)
pretrained(
    "Speech2Text",
    "Speech2TextForConditionalGeneration",
    lambda t: t.Speech2TextConfig(
        vocab_size=50,
        d_model=24,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        input_feat_per_channel=8,
        input_channels=1,
        conv_channels=32,
        use_cache=False,
    ),
    lambda g, b, n: {
        "input_features": torch.randn(b, n, 8, generator=g, dtype=torch.float64),
        "decoder_input_ids": torch.randint(3, 50, (b, 5), generator=g),
    },
    24,
    (1, 24),
    (3, 32),
    (2, 17),
)
pretrained(
    "Mamba",
    "MambaForCausalLM",
    lambda t: t.MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, state_size=4, use_cache=False),
    words(),
    9,
    (1, 9),
    (3, 6),
)
pretrained(
    "FastSpeech2-Conformer HiFi-GAN",
    "FastSpeech2ConformerHifiGan",
    lambda t: t.FastSpeech2ConformerHifiGanConfig(
        model_in_dim=12,
        upsample_initial_channel=32,
        upsample_rates=[4, 4],
        upsample_kernel_sizes=[8, 8],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
    ),
    numbers("spectrogram", 12),
    10,
    (1, 10),
    (3, 14),
)
pretrained(
    "EnCodec, encoder",
    "EncodecModel",
    lambda t: t.EncodecConfig(
        num_filters=8, hidden_size=16, upsampling_ratios=[4, 2], num_lstm_layers=1, codebook_size=8
    ),
    lambda g, b, n: {"hidden_states": torch.randn(b, 1, n, generator=g, dtype=torch.float64)},
    160,
    (1, 160),
    (3, 200),
    (2, 144),
    prepare=lambda model: model.encoder,  # type: ignore[return-value, arg-type]
)
pretrained(
    "Parakeet (FastConformer)",
    "ParakeetEncoder",
    lambda t: t.ParakeetEncoderConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        conv_kernel_size=5,
        subsampling_conv_channels=16,
        num_mel_bins=16,
        max_position_embeddings=64,
    ),
    numbers("input_features", 16),
    64,
    (1, 64),
    (3, 80),
    (2, 48),
    returns=("last_hidden_state",),
)
