"""Rows of benchmarks/model_table.py: architectures at their usual widths, with random weights.

Widths, heads and vocabularies are those of a published model; there are fewer layers where it has
many, and a vocabulary of 32,000 in place of a larger one, so that a row takes about a minute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from turbine import zoo
from turbine.coverage.tiny_models import Architecture
from turbine.zoo.example import Example
from turbine.zoo.seeds import build_seeded


@dataclass(frozen=True)
class Row:
    """A model with the arguments of a call, and what they are in words."""

    like: str
    call: str
    build: Callable[[], Example]


def of_package(
    like: str,
    call: str,
    configuration: str,
    options: dict[str, Any],
    model: str,
    arguments: Callable[[], dict[str, Any]],
) -> Row:
    """A row of the transformers package."""
    architecture = Architecture("", configuration, options, model, lambda batch: arguments())

    def build() -> Example:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            given = architecture.arguments(1)
        return Example(build_seeded(architecture.build), (), given)

    return Row(like, call, build)


def tokens(length: int, **others: Any) -> dict[str, Any]:
    ids = torch.randint(5, 30000, (1, length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **others}


def prompt() -> dict[str, Any]:
    return tokens(64, use_cache=False)


def pairs() -> dict[str, Any]:
    given = tokens(128, use_cache=False)
    return {**given, "decoder_input_ids": given["input_ids"][:, :32].clone()}


def image(size: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(1, 3, size, size)}


def speech() -> dict[str, Any]:
    ids = torch.randint(5, 30000, (1, 16))
    features = torch.randn(1, 80, 3000)
    return {"input_features": features, "decoder_input_ids": ids, "use_cache": False}


def picture_and_text() -> dict[str, Any]:
    return {**tokens(32), **image(224)}


_TEXT, _PROMPT, _IMAGE = "128 tokens", "64 tokens", "224 x 224"
_LAYERS = {"num_hidden_layers": 4}
_GROUPED = {
    **_LAYERS,
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
}
_MINILM = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}
_QWEN = {
    **_GROUPED,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
_GEMMA = {
    "vocab_size": 32000,
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
}
_NEOX = {**_LAYERS, "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
_PHI = {
    **_LAYERS,
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
}
_BART = {
    "d_model": 768,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 12,
    "decoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
    "decoder_ffn_dim": 3072,
}
_WHISPER = {
    "d_model": 384,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
}
_SEGFORMER = {"hidden_sizes": [32, 64, 160, 256], "depths": [2, 2, 2, 2], "num_labels": 150}
_MAMBA = {**_LAYERS, "hidden_size": 768, "state_size": 16, "vocab_size": 32000}

_encoder = partial(tokens, 128)
_square = partial(image, 224)


def _waveform() -> dict[str, Any]:
    return {"input_values": torch.randn(1, 16000)}


ROWS: dict[str, Row] = {
    "bert": of_package("BERT base, 4 layers", _TEXT, "BertConfig", _LAYERS, "BertModel", _encoder),
    "roberta": of_package(
        "RoBERTa base, 4 layers",
        _TEXT,
        "RobertaConfig",
        {**_LAYERS, "vocab_size": 50265, "max_position_embeddings": 514},
        "RobertaModel",
        _encoder,
    ),
    "distilbert": of_package(
        "DistilBERT base", _TEXT, "DistilBertConfig", {}, "DistilBertModel", _encoder
    ),
    "minilm": of_package("MiniLM-L6-H384", _TEXT, "BertConfig", _MINILM, "BertModel", _encoder),
    "mpnet": of_package(
        "MPNet base, 4 layers", _TEXT, "MPNetConfig", _LAYERS, "MPNetModel", _encoder
    ),
    "modernbert": of_package(
        "ModernBERT base, 4 layers", _TEXT, "ModernBertConfig", _LAYERS, "ModernBertModel", _encoder
    ),
    "gpt2": of_package(
        "GPT-2, 4 layers", _PROMPT, "GPT2Config", {"n_layer": 4}, "GPT2LMHeadModel", prompt
    ),
    "gpt_neox": of_package(
        "Pythia 160M, 4 layers", _PROMPT, "GPTNeoXConfig", _NEOX, "GPTNeoXForCausalLM", prompt
    ),
    "llama": of_package(
        "Llama, 4 layers of 1024", _PROMPT, "LlamaConfig", _GROUPED, "LlamaForCausalLM", prompt
    ),
    "mistral": of_package(
        "Mistral, 4 layers of 1024",
        _PROMPT,
        "MistralConfig",
        {**_GROUPED, "sliding_window": 32},
        "MistralForCausalLM",
        prompt,
    ),
    "qwen2": of_package(
        "Qwen2 0.5B, 4 layers", _PROMPT, "Qwen2Config", _QWEN, "Qwen2ForCausalLM", prompt
    ),
    "gemma3": of_package(
        "Gemma 3 270M, 6 layers", _PROMPT, "Gemma3TextConfig", _GEMMA, "Gemma3ForCausalLM", prompt
    ),
    "phi": of_package(
        "Phi, 4 layers of 1024", _PROMPT, "PhiConfig", _PHI, "PhiForCausalLM", prompt
    ),
    "mamba": of_package(
        "Mamba 130M, 4 layers",
        _PROMPT,
        "MambaConfig",
        _MAMBA,
        "MambaForCausalLM",
        lambda: {"input_ids": prompt()["input_ids"], "use_cache": False},
    ),
    "t5": of_package(
        "T5 small", "128 + 32 tokens", "T5Config", {"tie_word_embeddings": True}, "T5Model", pairs
    ),
    "bart": of_package(
        "BART base, 3 + 3 layers", "128 + 32 tokens", "BartConfig", _BART, "BartModel", pairs
    ),
    "whisper": of_package(
        "Whisper tiny", "30 s + 16 tokens", "WhisperConfig", _WHISPER, "WhisperModel", speech
    ),
    "wav2vec2": of_package(
        "wav2vec 2.0 base, 4 layers", "1 s", "Wav2Vec2Config", _LAYERS, "Wav2Vec2Model", _waveform
    ),
    "vit": of_package(
        "ViT base, 4 layers", _IMAGE, "ViTConfig", _LAYERS, "ViTForImageClassification", _square
    ),
    "deit": of_package("DeiT base, 4 layers", _IMAGE, "DeiTConfig", _LAYERS, "DeiTModel", _square),
    "swin": of_package(
        "Swin tiny, 8 blocks", _IMAGE, "SwinConfig", {"depths": [2, 2, 2, 2]}, "SwinModel", _square
    ),
    "convnext": of_package(
        "ConvNeXt tiny, 12 blocks",
        _IMAGE,
        "ConvNextConfig",
        {"depths": [3, 3, 3, 3]},
        "ConvNextModel",
        _square,
    ),
    "resnet": of_package(
        "ResNet-50", _IMAGE, "ResNetConfig", {}, "ResNetForImageClassification", _square
    ),
    "mobilenet_v2": of_package(
        "MobileNetV2",
        _IMAGE,
        "MobileNetV2Config",
        {},
        "MobileNetV2ForImageClassification",
        _square,
    ),
    "segformer": of_package(
        "SegFormer B0",
        "256 x 256",
        "SegformerConfig",
        _SEGFORMER,
        "SegformerForSemanticSegmentation",
        partial(image, 256),
    ),
    "clip": of_package(
        "CLIP ViT-B/32, 4 + 4 layers",
        "224 x 224 + 32 tokens",
        "CLIPConfig",
        {"text_config": _LAYERS, "vision_config": _LAYERS},
        "CLIPModel",
        picture_and_text,
    ),
    "diffusion": Row(
        "Stable-Diffusion-style UNet, 128 channels",
        "2 x 32 x 32 latents",
        zoo.latent_unet,
    ),
    "recommender": Row(
        "DLRM, 8 tables of 100,000 x 32",
        "64 users",
        partial(zoo.embeddingbag, rows=100_000),
    ),
}
