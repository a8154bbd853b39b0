"""Judge architectures of the transformers package as exports.

Each is built from a tiny configuration with random weights, exported with the sizes of its
arguments and with a dynamic batch size, and compared with eager: values, dtypes and shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from turbine import errors
from turbine.coverage import exported
from turbine.coverage.answers import first_line
from turbine.coverage.front_door import EXPORT_BY_ARCHITECTURE, FrontDoor
from turbine.coverage.samples import Case, set_seed
from turbine.coverage.verdicts import NOT_TRACED, Verdict

STATIC, DYNAMIC = WAYS = ("static", "dynamic batch")
# A dynamic batch size is traced with one size and run with another.
_BATCH, _OTHER_BATCH = 2, 3
_VOCABULARY = 99


@dataclass(frozen=True)
class Architecture:
    """A model of the transformers package, and the arguments of a call for a batch size."""

    kind: str
    configuration: str
    sizes: dict[str, Any]
    model: str
    arguments: Callable[[int], dict[str, Any]]

    def build(self) -> nn.Module:
        """The model, with random weights."""
        package = _transformers()
        # The package makes its classes on first use.
        configuration = package.__getattr__(self.configuration)(**self.sizes)
        model: nn.Module = package.__getattr__(self.model)(configuration)
        return model.eval()


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise errors.MissingExtra(
            "transformers is not installed", hint="pip install turbine[models]"
        ) from error
    return transformers


def architectures() -> dict[str, Architecture]:
    """All architectures by name, if the transformers package is installed."""
    _transformers()
    return ARCHITECTURES


def judge(architecture: Architecture, seed: int = 0, samples: int = 1) -> dict[str, Verdict]:
    """Export a model with a static and with a dynamic batch size; there is one sample."""
    set_seed(seed)
    try:
        model = architecture.build()
    except Exception as error:
        reason = f"the model is not built: {type(error).__name__}: {first_line(error)}"
        return dict.fromkeys(WAYS, Verdict(NOT_TRACED, reason))
    case = Case(model, (), architecture.arguments(_BATCH), seed=seed)
    other = Case(model, (), architecture.arguments(_OTHER_BATCH), seed=seed)
    return {
        STATIC: exported.judge_case(case),
        DYNAMIC: exported.judge_case(other, axes=_batch_axis, example=case),
    }


def _batch_axis(x: torch.Tensor) -> dict[int, Any]:
    return {0: torch.export.Dim.DYNAMIC}


def _tokens(batch: int) -> dict[str, Any]:
    ids = torch.randint(2, _VOCABULARY, (batch, 10))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _uncached(batch: int) -> dict[str, Any]:
    return {**_tokens(batch), "use_cache": False}


def _ids(batch: int) -> dict[str, Any]:
    return {"input_ids": _tokens(batch)["input_ids"]}


def _characters(batch: int) -> dict[str, Any]:
    return {"input_ids": torch.randint(2, _VOCABULARY, (batch, 32))}


def _uncached_ids(batch: int) -> dict[str, Any]:
    return {**_ids(batch), "use_cache": False}


def _pairs(batch: int) -> dict[str, Any]:
    given = _uncached(batch)
    return {**given, "decoder_input_ids": given["input_ids"].clone()}


def _boxes(batch: int) -> dict[str, Any]:
    corner = torch.randint(0, 20, (batch, 10, 2))
    return {**_tokens(batch), "bbox": torch.cat([corner, corner + 5], 2)}


def _images(batch: int, size: int = 32) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, size, size)}


def _large_images(batch: int) -> dict[str, Any]:
    return _images(batch, 64)


def _images_and_tokens(batch: int) -> dict[str, Any]:
    return {**_tokens(batch), **_images(batch)}


def _waveforms(batch: int) -> dict[str, Any]:
    return {"input_values": torch.randn(batch, 400)}


def _speech(batch: int) -> dict[str, Any]:
    ids = _tokens(batch)["input_ids"]
    features = torch.randn(batch, 8, 40)
    return {"input_features": features, "decoder_input_ids": ids, "use_cache": False}


def _spectrograms(batch: int) -> dict[str, Any]:
    return {"input_values": torch.randn(batch, 32, 16)}


def _codes(batch: int) -> dict[str, Any]:
    return {"input_values": torch.randn(batch, 1, 320)}


def _series(batch: int) -> dict[str, Any]:
    return {"past_values": torch.randn(batch, 32, 2)}


def _past_and_future(batch: int) -> dict[str, Any]:
    return {
        "past_values": torch.randn(batch, 15),
        "past_time_features": torch.randn(batch, 15, 1),
        "past_observed_mask": torch.ones(batch, 15),
        "future_values": torch.randn(batch, 4),
        "future_time_features": torch.randn(batch, 4, 1),
        "use_cache": False,
    }


_SIZES = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
_TYPED = {**_SIZES, "type_vocab_size": 2}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
_HEADS = {**_GROUPED, "head_dim": 8}
_EXPERTS = {**_GROUPED, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LOCAL = {**_EXPERTS, "num_local_experts": 4}
_ROUTED = {**_EXPERTS, "num_experts": 4}
_LATENT = {
    **_ROUTED,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 0,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}
_SEQUENCES = {
    "vocab_size": _VOCABULARY,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "decoder_start_token_id": 2,
}
_T5 = {
    "vocab_size": _VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 1,
    "num_decoder_layers": 1,
    "num_heads": 4,
}
_GPT = {
    "vocab_size": _VOCABULARY,
    "n_embd": 32,
    "n_layer": 1,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
_PATCHES = {**_SIZES, "image_size": 32, "patch_size": 8}
_STAGES = {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}
_PYRAMID = {
    "hidden_sizes": [8, 16, 16, 32],
    "depths": [1, 1, 1, 1],
    "num_attention_heads": [1, 2, 2, 4],
}
_WINDOWS = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 16,
    "depths": [1, 1],
    "num_heads": [2, 2],
    "window_size": 4,
}
_WAVES = {
    **_SIZES,
    "conv_dim": [16, 16],
    "conv_kernel": [10, 3],
    "conv_stride": [5, 2],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}
_TEXT_AND_IMAGE = {
    "text_config": _SIZES,
    "vision_config": _PATCHES,
    "projection_dim": 16,
}
_FORECAST = {
    **_SEQUENCES,
    "prediction_length": 4,
    "context_length": 8,
    "lags_sequence": [1, 2, 7],
    "num_time_features": 1,
}

KINDS = (
    _ENCODER,
    _DECODER,
    _EXPERT,
    _STATE,
    _SEQUENCE,
    _VISION,
    _AUDIO,
    _MULTIMODAL,
    _SERIES,
) = (
    "encoders",
    "decoders",
    "mixtures of experts",
    "state spaces and recurrence",
    "encoder-decoders",
    "vision",
    "audio",
    "text and images",
    "time series",
)

# name -> kind, configuration class, what it is given, model class, arguments of a call
Row = tuple[str, str, dict[str, Any], str, Callable[[int], dict[str, Any]]]
_ROWS: dict[str, Row] = {
    "albert": (_ENCODER, "AlbertConfig", {**_TYPED, "embedding_size": 16}, "AlbertModel", _tokens),
    "bert": (_ENCODER, "BertConfig", _SIZES, "BertModel", _tokens),
    "big_bird": (
        _ENCODER,
        "BigBirdConfig",
        {**_SIZES, "attention_type": "original_full"},
        "BigBirdModel",
        _tokens,
    ),
    "canine": (
        _ENCODER,
        "CanineConfig",
        {**_SIZES, "local_transformer_stride": 8, "num_hash_buckets": 64},
        "CanineModel",
        _characters,
    ),
    "convbert": (_ENCODER, "ConvBertConfig", _SIZES, "ConvBertModel", _tokens),
    "deberta": (_ENCODER, "DebertaConfig", _SIZES, "DebertaModel", _tokens),
    "deberta_v2": (_ENCODER, "DebertaV2Config", _SIZES, "DebertaV2Model", _tokens),
    "distilbert": (
        _ENCODER,
        "DistilBertConfig",
        {"vocab_size": _VOCABULARY, "dim": 32, "n_layers": 1, "n_heads": 4, "hidden_dim": 64},
        "DistilBertModel",
        _tokens,
    ),
    "electra": (
        _ENCODER,
        "ElectraConfig",
        {**_SIZES, "embedding_size": 16},
        "ElectraModel",
        _tokens,
    ),
    "esm": (_ENCODER, "EsmConfig", {**_SIZES, "mask_token_id": 3}, "EsmModel", _tokens),
    "fnet": (_ENCODER, "FNetConfig", _SIZES, "FNetModel", _ids),
    "funnel": (
        _ENCODER,
        "FunnelConfig",
        {
            "vocab_size": _VOCABULARY,
            "block_sizes": [1, 1],
            "d_model": 32,
            "n_head": 4,
            "d_head": 8,
            "d_inner": 64,
            "num_decoder_layers": 1,
        },
        "FunnelModel",
        _tokens,
    ),
    "ibert": (_ENCODER, "IBertConfig", _SIZES, "IBertModel", _tokens),
    "layoutlm": (_ENCODER, "LayoutLMConfig", _SIZES, "LayoutLMModel", _boxes),
    "longformer": (
        _ENCODER,
        "LongformerConfig",
        {**_SIZES, "attention_window": 4},
        "LongformerModel",
        _tokens,
    ),
    "mobilebert": (
        _ENCODER,
        "MobileBertConfig",
        {**_SIZES, "intra_bottleneck_size": 32, "embedding_size": 16},
        "MobileBertModel",
        _tokens,
    ),
    "modernbert": (
        _ENCODER,
        "ModernBertConfig",
        {**_SIZES, "cls_token_id": 1, "sep_token_id": 1},
        "ModernBertModel",
        _tokens,
    ),
    "mpnet": (_ENCODER, "MPNetConfig", _SIZES, "MPNetModel", _tokens),
    "mra": (_ENCODER, "MraConfig", _SIZES, "MraModel", _tokens),
    "nystromformer": (
        _ENCODER,
        "NystromformerConfig",
        {**_SIZES, "segment_means_seq_len": 10, "num_landmarks": 5},
        "NystromformerModel",
        _tokens,
    ),
    "reformer": (
        _ENCODER,
        "ReformerConfig",
        {
            "vocab_size": _VOCABULARY,
            "hidden_size": 32,
            "attention_head_size": 8,
            "num_attention_heads": 4,
            "feed_forward_size": 64,
            "attn_layers": ["local"],
            "axial_pos_embds": False,
            "max_position_embeddings": 64,
            "local_attn_chunk_length": 8,
        },
        "ReformerModel",
        lambda batch: {**_characters(batch), "use_cache": False},
    ),
    "roberta": (_ENCODER, "RobertaConfig", _SIZES, "RobertaModel", _tokens),
    "roformer": (_ENCODER, "RoFormerConfig", _SIZES, "RoFormerModel", _tokens),
    "squeezebert": (
        _ENCODER,
        "SqueezeBertConfig",
        {**_SIZES, "embedding_size": 32, "intermediate_groups": 4},
        "SqueezeBertModel",
        _tokens,
    ),
    "xlm": (
        _ENCODER,
        "XLMConfig",
        {"vocab_size": _VOCABULARY, "emb_dim": 32, "n_layers": 1, "n_heads": 4},
        "XLMModel",
        _tokens,
    ),
    "xlnet": (
        _ENCODER,
        "XLNetConfig",
        {"vocab_size": _VOCABULARY, "d_model": 32, "n_layer": 1, "n_head": 4, "d_inner": 64},
        "XLNetModel",
        _ids,
    ),
    "bitnet": (_DECODER, "BitNetConfig", _GROUPED, "BitNetForCausalLM", _uncached),
    "bloom": (
        _DECODER,
        "BloomConfig",
        {"vocab_size": _VOCABULARY, "hidden_size": 32, "n_layer": 1, "n_head": 4},
        "BloomForCausalLM",
        _uncached,
    ),
    "cohere": (_DECODER, "CohereConfig", _GROUPED, "CohereForCausalLM", _uncached),
    "ctrl": (
        _DECODER,
        "CTRLConfig",
        {"vocab_size": _VOCABULARY, "n_embd": 32, "dff": 64, "n_layer": 1, "n_head": 4},
        "CTRLLMHeadModel",
        _uncached,
    ),
    "diffllama": (_DECODER, "DiffLlamaConfig", _GROUPED, "DiffLlamaForCausalLM", _uncached),
    "falcon": (_DECODER, "FalconConfig", _SIZES, "FalconForCausalLM", _uncached),
    "gemma": (_DECODER, "GemmaConfig", _HEADS, "GemmaForCausalLM", _uncached),
    "gemma2": (_DECODER, "Gemma2Config", _HEADS, "Gemma2ForCausalLM", _uncached),
    "gemma3": (_DECODER, "Gemma3TextConfig", _HEADS, "Gemma3ForCausalLM", _uncached),
    "glm4": (_DECODER, "Glm4Config", _HEADS, "Glm4ForCausalLM", _uncached),
    "gpt2": (_DECODER, "GPT2Config", _GPT, "GPT2LMHeadModel", _uncached),
    "gpt_neo": (
        _DECODER,
        "GPTNeoConfig",
        {
            "vocab_size": _VOCABULARY,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "max_position_embeddings": 64,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
        },
        "GPTNeoForCausalLM",
        _uncached,
    ),
    "gpt_neox": (_DECODER, "GPTNeoXConfig", _SIZES, "GPTNeoXForCausalLM", _uncached),
    "gptj": (_DECODER, "GPTJConfig", {**_GPT, "rotary_dim": 4}, "GPTJForCausalLM", _uncached),
    "granite": (_DECODER, "GraniteConfig", _GROUPED, "GraniteForCausalLM", _uncached),
    "llama": (_DECODER, "LlamaConfig", _GROUPED, "LlamaForCausalLM", _uncached),
    "mistral": (_DECODER, "MistralConfig", _GROUPED, "MistralForCausalLM", _uncached),
    "mpt": (
        _DECODER,
        "MptConfig",
        {"vocab_size": _VOCABULARY, "d_model": 32, "n_layers": 1, "n_heads": 4, "max_seq_len": 64},
        "MptForCausalLM",
        _uncached,
    ),
    "opt": (
        _DECODER,
        "OPTConfig",
        {**_SIZES, "ffn_dim": 64, "word_embed_proj_dim": 32},
        "OPTForCausalLM",
        _uncached,
    ),
    "phi": (_DECODER, "PhiConfig", _SIZES, "PhiForCausalLM", _uncached),
    "phi3": (_DECODER, "Phi3Config", _GROUPED, "Phi3ForCausalLM", _uncached),
    "qwen2": (_DECODER, "Qwen2Config", _GROUPED, "Qwen2ForCausalLM", _uncached),
    "qwen3": (_DECODER, "Qwen3Config", _HEADS, "Qwen3ForCausalLM", _uncached),
    "deepseek_v2": (_EXPERT, "DeepseekV2Config", _LATENT, "DeepseekV2ForCausalLM", _uncached),
    "deepseek_v3": (_EXPERT, "DeepseekV3Config", _LATENT, "DeepseekV3ForCausalLM", _uncached),
    "gpt_oss": (_EXPERT, "GptOssConfig", {**_LOCAL, "head_dim": 8}, "GptOssForCausalLM", _uncached),
    "mixtral": (_EXPERT, "MixtralConfig", _LOCAL, "MixtralForCausalLM", _uncached),
    "olmoe": (_EXPERT, "OlmoeConfig", _ROUTED, "OlmoeForCausalLM", _uncached),
    "qwen3_moe": (
        _EXPERT,
        "Qwen3MoeConfig",
        {**_ROUTED, "head_dim": 8},
        "Qwen3MoeForCausalLM",
        _uncached,
    ),
    "switch_transformers": (
        _EXPERT,
        "SwitchTransformersConfig",
        {**_T5, "num_experts": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
        "SwitchTransformersModel",
        _pairs,
    ),
    "mamba": (
        _STATE,
        "MambaConfig",
        {"vocab_size": _VOCABULARY, "hidden_size": 32, "num_hidden_layers": 1, "state_size": 4},
        "MambaForCausalLM",
        _uncached_ids,
    ),
    "mamba2": (
        _STATE,
        "Mamba2Config",
        {
            "vocab_size": _VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "state_size": 4,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 2,
            "chunk_size": 8,
        },
        "Mamba2ForCausalLM",
        _uncached_ids,
    ),
    "recurrent_gemma": (
        _STATE,
        "RecurrentGemmaConfig",
        {**_HEADS, "lru_width": 32, "num_hidden_layers": 3, "attention_window_size": 16},
        "RecurrentGemmaForCausalLM",
        _uncached,
    ),
    "rwkv": (
        _STATE,
        "RwkvConfig",
        {"vocab_size": _VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2},
        "RwkvForCausalLM",
        _uncached_ids,
    ),
    "bart": (_SEQUENCE, "BartConfig", _SEQUENCES, "BartModel", _pairs),
    "led": (
        _SEQUENCE,
        "LEDConfig",
        {
            **_SEQUENCES,
            "attention_window": 4,
            "max_encoder_position_embeddings": 64,
            "max_decoder_position_embeddings": 64,
        },
        "LEDModel",
        _pairs,
    ),
    "longt5": (_SEQUENCE, "LongT5Config", {**_T5, "local_radius": 4}, "LongT5Model", _pairs),
    "m2m_100": (_SEQUENCE, "M2M100Config", _SEQUENCES, "M2M100Model", _pairs),
    "marian": (_SEQUENCE, "MarianConfig", _SEQUENCES, "MarianModel", _pairs),
    "prophetnet": (
        _SEQUENCE,
        "ProphetNetConfig",
        {
            "vocab_size": _VOCABULARY,
            "hidden_size": 32,
            "max_position_embeddings": 64,
            "num_encoder_layers": 1,
            "num_encoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "num_decoder_layers": 1,
            "num_decoder_attention_heads": 4,
            "decoder_ffn_dim": 64,
        },
        "ProphetNetModel",
        _pairs,
    ),
    "t5": (_SEQUENCE, "T5Config", _T5, "T5Model", _pairs),
    "beit": (
        _VISION,
        "BeitConfig",
        {**_PATCHES, "use_relative_position_bias": True},
        "BeitModel",
        _images,
    ),
    "convnext": (_VISION, "ConvNextConfig", _STAGES, "ConvNextModel", _images),
    "dinov2": (_VISION, "Dinov2Config", _PATCHES, "Dinov2Model", _images),
    "efficientnet": (
        _VISION,
        "EfficientNetConfig",
        {
            "image_size": 32,
            "width_coefficient": 0.25,
            "hidden_dim": 320,
            "in_channels": [8, 4],
            "out_channels": [4, 8],
            "kernel_sizes": [3, 3],
            "strides": [1, 2],
            "num_block_repeats": [1, 1],
            "expand_ratios": [1, 6],
            "depthwise_padding": [],
        },
        "EfficientNetModel",
        _images,
    ),
    "focalnet": (
        _VISION,
        "FocalNetConfig",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "hidden_sizes": [16, 32],
            "depths": [1, 1],
            "focal_levels": [1, 1],
            "focal_windows": [3, 3],
        },
        "FocalNetModel",
        _images,
    ),
    "levit": (
        _VISION,
        "LevitConfig",
        {
            "image_size": 64,
            "hidden_sizes": [16, 16, 16],
            "num_attention_heads": [2, 2, 2],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
        },
        "LevitModel",
        _large_images,
    ),
    "mobilenet_v2": (
        _VISION,
        "MobileNetV2Config",
        {"image_size": 32, "depth_multiplier": 0.25},
        "MobileNetV2Model",
        _images,
    ),
    "mobilevit": (
        _VISION,
        "MobileViTConfig",
        {
            "image_size": 64,
            "hidden_sizes": [16, 16, 16],
            "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 16],
        },
        "MobileViTModel",
        _large_images,
    ),
    "poolformer": (_VISION, "PoolFormerConfig", _STAGES, "PoolFormerModel", _large_images),
    "pvt": (
        _VISION,
        "PvtConfig",
        {**_PYRAMID, "image_size": 32, "num_attention_heads": [1, 2, 2, 4]},
        "PvtModel",
        _images,
    ),
    "regnet": (
        _VISION,
        "RegNetConfig",
        {"embedding_size": 8, **_STAGES, "groups_width": 8},
        "RegNetModel",
        _images,
    ),
    "resnet": (_VISION, "ResNetConfig", {"embedding_size": 8, **_STAGES}, "ResNetModel", _images),
    "segformer": (_VISION, "SegformerConfig", _PYRAMID, "SegformerModel", _large_images),
    "swin": (_VISION, "SwinConfig", _WINDOWS, "SwinModel", _images),
    "swinv2": (_VISION, "Swinv2Config", _WINDOWS, "Swinv2Model", _images),
    "vit": (_VISION, "ViTConfig", _PATCHES, "ViTModel", _images),
    "yolos": (
        _VISION,
        "YolosConfig",
        {**_PATCHES, "image_size": [32, 32], "num_detection_tokens": 4},
        "YolosModel",
        _images,
    ),
    "audio_spectrogram_transformer": (
        _AUDIO,
        "ASTConfig",
        {
            **_SIZES,
            "max_length": 32,
            "num_mel_bins": 16,
            "patch_size": 4,
            "time_stride": 4,
            "frequency_stride": 4,
        },
        "ASTModel",
        _spectrograms,
    ),
    "encodec": (
        _AUDIO,
        "EncodecConfig",
        {
            "hidden_size": 16,
            "num_filters": 4,
            "upsampling_ratios": [4, 2],
            "codebook_size": 16,
            "codebook_dim": 16,
            "num_lstm_layers": 1,
            "compress": 2,
        },
        "EncodecModel",
        _codes,
    ),
    "hubert": (_AUDIO, "HubertConfig", _WAVES, "HubertModel", _waveforms),
    "speech_to_text": (
        _AUDIO,
        "Speech2TextConfig",
        {
            **_SEQUENCES,
            "input_feat_per_channel": 8,
            "conv_channels": 16,
            "num_conv_layers": 2,
            "conv_kernel_sizes": [3, 3],
            "max_source_positions": 64,
            "max_target_positions": 64,
        },
        "Speech2TextModel",
        lambda batch: {**_speech(batch), "input_features": torch.randn(batch, 40, 8)},
    ),
    "wav2vec2": (_AUDIO, "Wav2Vec2Config", _WAVES, "Wav2Vec2Model", _waveforms),
    "wavlm": (
        _AUDIO,
        "WavLMConfig",
        {**_WAVES, "num_buckets": 8, "max_bucket_distance": 16},
        "WavLMModel",
        _waveforms,
    ),
    "whisper": (
        _AUDIO,
        "WhisperConfig",
        {
            **_SEQUENCES,
            "num_mel_bins": 8,
            "max_source_positions": 20,
            "max_target_positions": 20,
        },
        "WhisperModel",
        _speech,
    ),
    "blip": (_MULTIMODAL, "BlipConfig", _TEXT_AND_IMAGE, "BlipModel", _images_and_tokens),
    "clip": (_MULTIMODAL, "CLIPConfig", _TEXT_AND_IMAGE, "CLIPModel", _images_and_tokens),
    "siglip": (_MULTIMODAL, "SiglipConfig", _TEXT_AND_IMAGE, "SiglipModel", _images_and_tokens),
    "vilt": (_MULTIMODAL, "ViltConfig", _PATCHES, "ViltModel", _images_and_tokens),
    "autoformer": (
        _SERIES,
        "AutoformerConfig",
        {**_FORECAST, "label_length": 2, "moving_average": 3},
        "AutoformerModel",
        _past_and_future,
    ),
    "informer": (_SERIES, "InformerConfig", _FORECAST, "InformerModel", _past_and_future),
    "patchtsmixer": (
        _SERIES,
        "PatchTSMixerConfig",
        {
            "context_length": 32,
            "patch_length": 8,
            "patch_stride": 8,
            "num_input_channels": 2,
            "d_model": 8,
            "num_layers": 1,
        },
        "PatchTSMixerModel",
        _series,
    ),
    "patchtst": (
        _SERIES,
        "PatchTSTConfig",
        {
            "context_length": 32,
            "patch_length": 8,
            "patch_stride": 8,
            "num_input_channels": 2,
            "d_model": 16,
            "num_attention_heads": 2,
            "num_hidden_layers": 1,
            "ffn_dim": 32,
        },
        "PatchTSTModel",
        _series,
    ),
    "time_series_transformer": (
        _SERIES,
        "TimeSeriesTransformerConfig",
        _FORECAST,
        "TimeSeriesTransformerModel",
        _past_and_future,
    ),
}
ARCHITECTURES = {name: Architecture(*row) for name, row in _ROWS.items()}


def _kind(name: str) -> str:
    return ARCHITECTURES[name].kind


def _version() -> str:
    return f"transformers {_transformers().__version__}"


FRONT_DOOR = FrontDoor(
    architectures,
    judge,
    KINDS,
    _kind,
    WAYS,
    exported.STATUSES,
    title=EXPORT_BY_ARCHITECTURE,
    noun="architecture",
    introduction="""\
{count} architectures of {version}, built from tiny configurations with random
weights, as exports, `turbine.aot.export(...).compile()`, compared with eager in values, dtypes and
shapes.
`turbine coverage --architectures --output docs/coverage.md` writes this section.""",
    version=_version,
    legend=(
        "static: with the sizes of the arguments",
        "dynamic batch: with `Dim.DYNAMIC` for the batch size, and run with another one",
        *exported.LEGEND,
    ),
    explained=exported.EXPLAINED,
)
