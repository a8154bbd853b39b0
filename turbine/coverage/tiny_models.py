"""Models of the transformers package from tiny configurations, with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from turbine.extras import import_extra

VOCABULARY = 99


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
        package = transformers()
        # The package makes its classes on first use.
        configuration = package.__getattr__(self.configuration)(**self.sizes)
        model: nn.Module = package.__getattr__(self.model)(configuration)
        return model.eval()


def transformers() -> Any:
    """The package, which is optional."""
    return import_extra("transformers", "models")


# Configuration class, what it is given, model class, arguments of a call.
Row = tuple[str, dict[str, Any], str, Callable[[int], dict[str, Any]]]


def of_kind(kind: str, rows: Mapping[str, Row]) -> dict[str, Architecture]:
    """Architectures of one kind, by name."""
    return {name: Architecture(kind, *row) for name, row in rows.items()}


def tokens(batch: int) -> dict[str, Any]:
    """Sequences without padding."""
    ids = torch.randint(2, VOCABULARY, (batch, 10))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
SEQUENCES = {
    "vocab_size": VOCABULARY,
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
