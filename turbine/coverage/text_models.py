"""Architectures for text."""

from __future__ import annotations

from typing import Any

import torch

from turbine.coverage.tiny_models import SEQUENCES, SIZES, VOCABULARY, of_kind, tokens


def _uncached(batch: int) -> dict[str, Any]:
    return {**tokens(batch), "use_cache": False}


def _ids(batch: int) -> dict[str, Any]:
    return {"input_ids": tokens(batch)["input_ids"]}


def _characters(batch: int) -> dict[str, Any]:
    return {"input_ids": torch.randint(2, VOCABULARY, (batch, 32))}


def _uncached_ids(batch: int) -> dict[str, Any]:
    return {**_ids(batch), "use_cache": False}


def _pairs(batch: int) -> dict[str, Any]:
    given = _uncached(batch)
    return {**given, "decoder_input_ids": given["input_ids"].clone()}


def _boxes(batch: int) -> dict[str, Any]:
    corner = torch.randint(0, 20, (batch, 10, 2))
    return {**tokens(batch), "bbox": torch.cat([corner, corner + 5], 2)}


_TYPED = {**SIZES, "type_vocab_size": 2}
_GROUPED = {**SIZES, "num_key_value_heads": 2}
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
_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 1,
    "num_decoder_layers": 1,
    "num_heads": 4,
}
_GPT = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 1,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 1,
}

ENCODERS = of_kind(
    "encoders",
    {
        "albert": ("AlbertConfig", {**_TYPED, "embedding_size": 16}, "AlbertModel", tokens),
        "bert": ("BertConfig", SIZES, "BertModel", tokens),
        "big_bird": (
            "BigBirdConfig",
            {**SIZES, "attention_type": "original_full"},
            "BigBirdModel",
            tokens,
        ),
        "canine": (
            "CanineConfig",
            {**SIZES, "local_transformer_stride": 8, "num_hash_buckets": 64},
            "CanineModel",
            _characters,
        ),
        "convbert": ("ConvBertConfig", SIZES, "ConvBertModel", tokens),
        "deberta": ("DebertaConfig", SIZES, "DebertaModel", tokens),
        "deberta_v2": ("DebertaV2Config", SIZES, "DebertaV2Model", tokens),
        "distilbert": (
            "DistilBertConfig",
            {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 1, "n_heads": 4, "hidden_dim": 64},
            "DistilBertModel",
            tokens,
        ),
        "electra": (
            "ElectraConfig",
            {**SIZES, "embedding_size": 16},
            "ElectraModel",
            tokens,
        ),
        "esm": ("EsmConfig", {**SIZES, "mask_token_id": 3}, "EsmModel", tokens),
        "fnet": ("FNetConfig", SIZES, "FNetModel", _ids),
        "funnel": (
            "FunnelConfig",
            {
                "vocab_size": VOCABULARY,
                "block_sizes": [1, 1],
                "d_model": 32,
                "n_head": 4,
                "d_head": 8,
                "d_inner": 64,
                "num_decoder_layers": 1,
            },
            "FunnelModel",
            tokens,
        ),
        "ibert": ("IBertConfig", SIZES, "IBertModel", tokens),
        "layoutlm": ("LayoutLMConfig", SIZES, "LayoutLMModel", _boxes),
        "longformer": (
            "LongformerConfig",
            {**SIZES, "attention_window": 4},
            "LongformerModel",
            tokens,
        ),
        "mobilebert": (
            "MobileBertConfig",
            {**SIZES, "intra_bottleneck_size": 32, "embedding_size": 16},
            "MobileBertModel",
            tokens,
        ),
        "modernbert": (
            "ModernBertConfig",
            {**SIZES, "cls_token_id": 1, "sep_token_id": 1},
            "ModernBertModel",
            tokens,
        ),
        "mpnet": ("MPNetConfig", SIZES, "MPNetModel", tokens),
        "mra": ("MraConfig", SIZES, "MraModel", tokens),
        "nystromformer": (
            "NystromformerConfig",
            {**SIZES, "segment_means_seq_len": 10, "num_landmarks": 5},
            "NystromformerModel",
            tokens,
        ),
        "reformer": (
            "ReformerConfig",
            {
                "vocab_size": VOCABULARY,
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
        "roberta": ("RobertaConfig", SIZES, "RobertaModel", tokens),
        "roformer": ("RoFormerConfig", SIZES, "RoFormerModel", tokens),
        "squeezebert": (
            "SqueezeBertConfig",
            {**SIZES, "embedding_size": 32, "intermediate_groups": 4},
            "SqueezeBertModel",
            tokens,
        ),
        "xlm": (
            "XLMConfig",
            {"vocab_size": VOCABULARY, "emb_dim": 32, "n_layers": 1, "n_heads": 4},
            "XLMModel",
            tokens,
        ),
        "xlnet": (
            "XLNetConfig",
            {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 1, "n_head": 4, "d_inner": 64},
            "XLNetModel",
            _ids,
        ),
    },
)

DECODERS = of_kind(
    "decoders",
    {
        "bitnet": ("BitNetConfig", _GROUPED, "BitNetForCausalLM", _uncached),
        "bloom": (
            "BloomConfig",
            {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 1, "n_head": 4},
            "BloomForCausalLM",
            _uncached,
        ),
        "cohere": ("CohereConfig", _GROUPED, "CohereForCausalLM", _uncached),
        "ctrl": (
            "CTRLConfig",
            {"vocab_size": VOCABULARY, "n_embd": 32, "dff": 64, "n_layer": 1, "n_head": 4},
            "CTRLLMHeadModel",
            _uncached,
        ),
        "diffllama": ("DiffLlamaConfig", _GROUPED, "DiffLlamaForCausalLM", _uncached),
        "falcon": ("FalconConfig", SIZES, "FalconForCausalLM", _uncached),
        "gemma": ("GemmaConfig", _HEADS, "GemmaForCausalLM", _uncached),
        "gemma2": ("Gemma2Config", _HEADS, "Gemma2ForCausalLM", _uncached),
        "gemma3": ("Gemma3TextConfig", _HEADS, "Gemma3ForCausalLM", _uncached),
        "glm4": ("Glm4Config", _HEADS, "Glm4ForCausalLM", _uncached),
        "gpt2": ("GPT2Config", _GPT, "GPT2LMHeadModel", _uncached),
        "gpt_neo": (
            "GPTNeoConfig",
            {
                "vocab_size": VOCABULARY,
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
        "gpt_neox": ("GPTNeoXConfig", SIZES, "GPTNeoXForCausalLM", _uncached),
        "gptj": ("GPTJConfig", {**_GPT, "rotary_dim": 4}, "GPTJForCausalLM", _uncached),
        "granite": ("GraniteConfig", _GROUPED, "GraniteForCausalLM", _uncached),
        "llama": ("LlamaConfig", _GROUPED, "LlamaForCausalLM", _uncached),
        "mistral": ("MistralConfig", _GROUPED, "MistralForCausalLM", _uncached),
        "mpt": (
            "MptConfig",
            {
                "vocab_size": VOCABULARY,
                "d_model": 32,
                "n_layers": 1,
                "n_heads": 4,
                "max_seq_len": 64,
            },
            "MptForCausalLM",
            _uncached,
        ),
        "opt": (
            "OPTConfig",
            {**SIZES, "ffn_dim": 64, "word_embed_proj_dim": 32},
            "OPTForCausalLM",
            _uncached,
        ),
        "phi": ("PhiConfig", SIZES, "PhiForCausalLM", _uncached),
        "phi3": ("Phi3Config", _GROUPED, "Phi3ForCausalLM", _uncached),
        "qwen2": ("Qwen2Config", _GROUPED, "Qwen2ForCausalLM", _uncached),
        "qwen3": ("Qwen3Config", _HEADS, "Qwen3ForCausalLM", _uncached),
    },
)

EXPERTS = of_kind(
    "mixtures of experts",
    {
        "deepseek_v2": ("DeepseekV2Config", _LATENT, "DeepseekV2ForCausalLM", _uncached),
        "deepseek_v3": ("DeepseekV3Config", _LATENT, "DeepseekV3ForCausalLM", _uncached),
        "gpt_oss": ("GptOssConfig", {**_LOCAL, "head_dim": 8}, "GptOssForCausalLM", _uncached),
        "mixtral": ("MixtralConfig", _LOCAL, "MixtralForCausalLM", _uncached),
        "olmoe": ("OlmoeConfig", _ROUTED, "OlmoeForCausalLM", _uncached),
        "qwen3_moe": (
            "Qwen3MoeConfig",
            {**_ROUTED, "head_dim": 8},
            "Qwen3MoeForCausalLM",
            _uncached,
        ),
        "switch_transformers": (
            "SwitchTransformersConfig",
            {
                **_T5,
                "num_experts": 2,
                "num_sparse_encoder_layers": 1,
                "num_sparse_decoder_layers": 1,
            },
            "SwitchTransformersModel",
            _pairs,
        ),
    },
)

STATE_SPACES = of_kind(
    "state spaces and recurrence",
    {
        "mamba": (
            "MambaConfig",
            {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 1, "state_size": 4},
            "MambaForCausalLM",
            _uncached_ids,
        ),
        "mamba2": (
            "Mamba2Config",
            {
                "vocab_size": VOCABULARY,
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
            "RecurrentGemmaConfig",
            {**_HEADS, "lru_width": 32, "num_hidden_layers": 3, "attention_window_size": 16},
            "RecurrentGemmaForCausalLM",
            _uncached,
        ),
        "rwkv": (
            "RwkvConfig",
            {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2},
            "RwkvForCausalLM",
            _uncached_ids,
        ),
    },
)

ENCODER_DECODERS = of_kind(
    "encoder-decoders",
    {
        "bart": ("BartConfig", SEQUENCES, "BartModel", _pairs),
        "led": (
            "LEDConfig",
            {
                **SEQUENCES,
                "attention_window": 4,
                "max_encoder_position_embeddings": 64,
                "max_decoder_position_embeddings": 64,
            },
            "LEDModel",
            _pairs,
        ),
        "longt5": ("LongT5Config", {**_T5, "local_radius": 4}, "LongT5Model", _pairs),
        "m2m_100": ("M2M100Config", SEQUENCES, "M2M100Model", _pairs),
        "marian": ("MarianConfig", SEQUENCES, "MarianModel", _pairs),
        "prophetnet": (
            "ProphetNetConfig",
            {
                "vocab_size": VOCABULARY,
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
        "t5": ("T5Config", _T5, "T5Model", _pairs),
    },
)

KINDS = (
    ENCODERS,
    DECODERS,
    EXPERTS,
    STATE_SPACES,
    ENCODER_DECODERS,
)
