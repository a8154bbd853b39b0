"""Architectures for images, sound and time series."""

from __future__ import annotations

from typing import Any

import torch

from turbine.coverage.tiny_models import SEQUENCES, SIZES, of_kind, tokens


def _images(batch: int, size: int = 32) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, size, size)}


def _large_images(batch: int) -> dict[str, Any]:
    return _images(batch, 64)


def _images_and_tokens(batch: int) -> dict[str, Any]:
    return {**tokens(batch), **_images(batch)}


def _waveforms(batch: int) -> dict[str, Any]:
    return {"input_values": torch.randn(batch, 400)}


def _speech(batch: int) -> dict[str, Any]:
    ids = tokens(batch)["input_ids"]
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


_PATCHES = {**SIZES, "image_size": 32, "patch_size": 8}
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
    **SIZES,
    "conv_dim": [16, 16],
    "conv_kernel": [10, 3],
    "conv_stride": [5, 2],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}
_TEXT_AND_IMAGE = {
    "text_config": SIZES,
    "vision_config": _PATCHES,
    "projection_dim": 16,
}
_FORECAST = {
    **SEQUENCES,
    "prediction_length": 4,
    "context_length": 8,
    "lags_sequence": [1, 2, 7],
    "num_time_features": 1,
}

VISION = of_kind(
    "vision",
    {
        "beit": (
            "BeitConfig",
            {**_PATCHES, "use_relative_position_bias": True},
            "BeitModel",
            _images,
        ),
        "convnext": ("ConvNextConfig", _STAGES, "ConvNextModel", _images),
        "dinov2": ("Dinov2Config", _PATCHES, "Dinov2Model", _images),
        "efficientnet": (
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
            "MobileNetV2Config",
            {"image_size": 32, "depth_multiplier": 0.25},
            "MobileNetV2Model",
            _images,
        ),
        "mobilevit": (
            "MobileViTConfig",
            {
                "image_size": 64,
                "hidden_sizes": [16, 16, 16],
                "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 16],
            },
            "MobileViTModel",
            _large_images,
        ),
        "poolformer": ("PoolFormerConfig", _STAGES, "PoolFormerModel", _large_images),
        "pvt": (
            "PvtConfig",
            {**_PYRAMID, "image_size": 32, "num_attention_heads": [1, 2, 2, 4]},
            "PvtModel",
            _images,
        ),
        "regnet": (
            "RegNetConfig",
            {"embedding_size": 8, **_STAGES, "groups_width": 8},
            "RegNetModel",
            _images,
        ),
        "resnet": ("ResNetConfig", {"embedding_size": 8, **_STAGES}, "ResNetModel", _images),
        "segformer": ("SegformerConfig", _PYRAMID, "SegformerModel", _large_images),
        "swin": ("SwinConfig", _WINDOWS, "SwinModel", _images),
        "swinv2": ("Swinv2Config", _WINDOWS, "Swinv2Model", _images),
        "vit": ("ViTConfig", _PATCHES, "ViTModel", _images),
        "yolos": (
            "YolosConfig",
            {**_PATCHES, "image_size": [32, 32], "num_detection_tokens": 4},
            "YolosModel",
            _images,
        ),
    },
)

AUDIO = of_kind(
    "audio",
    {
        "audio_spectrogram_transformer": (
            "ASTConfig",
            {
                **SIZES,
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
        "hubert": ("HubertConfig", _WAVES, "HubertModel", _waveforms),
        "speech_to_text": (
            "Speech2TextConfig",
            {
                **SEQUENCES,
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
        "wav2vec2": ("Wav2Vec2Config", _WAVES, "Wav2Vec2Model", _waveforms),
        "wavlm": (
            "WavLMConfig",
            {**_WAVES, "num_buckets": 8, "max_bucket_distance": 16},
            "WavLMModel",
            _waveforms,
        ),
        "whisper": (
            "WhisperConfig",
            {
                **SEQUENCES,
                "num_mel_bins": 8,
                "max_source_positions": 20,
                "max_target_positions": 20,
            },
            "WhisperModel",
            _speech,
        ),
    },
)

TEXT_AND_IMAGES = of_kind(
    "text and images",
    {
        "blip": ("BlipConfig", _TEXT_AND_IMAGE, "BlipModel", _images_and_tokens),
        "clip": ("CLIPConfig", _TEXT_AND_IMAGE, "CLIPModel", _images_and_tokens),
        "siglip": ("SiglipConfig", _TEXT_AND_IMAGE, "SiglipModel", _images_and_tokens),
        "vilt": ("ViltConfig", _PATCHES, "ViltModel", _images_and_tokens),
    },
)

TIME_SERIES = of_kind(
    "time series",
    {
        "autoformer": (
            "AutoformerConfig",
            {**_FORECAST, "label_length": 2, "moving_average": 3},
            "AutoformerModel",
            _past_and_future,
        ),
        "informer": ("InformerConfig", _FORECAST, "InformerModel", _past_and_future),
        "patchtsmixer": (
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
            "TimeSeriesTransformerConfig",
            _FORECAST,
            "TimeSeriesTransformerModel",
            _past_and_future,
        ),
    },
)

KINDS = (
    VISION,
    AUDIO,
    TEXT_AND_IMAGES,
    TIME_SERIES,
)
