"""A Whisper that keeps what it has heard and written: sound once, then token by token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Cache(nn.Module):
    """Keys and values of a layer: of the tokens so far, and of the sound."""

    keys: Tensor
    values: Tensor
    sound_keys: Tensor
    sound_values: Tensor

    def __init__(self, heads: int, head: int, tokens: int, sound: int) -> None:
        super().__init__()
        for name, length in (("", tokens), ("sound_", sound)):
            shape = (heads, length, head)
            self.register_buffer(f"{name}keys", torch.zeros(shape), persistent=False)
            self.register_buffer(f"{name}values", torch.zeros(shape), persistent=False)


class Transcriber(nn.Module):
    """A Whisper of the transformers package, decoded one token at a time."""

    position: Tensor

    def __init__(self, whisper: Any) -> None:
        super().__init__()
        self.whisper = whisper
        sizes = whisper.config
        heads, length = sizes.decoder_attention_heads, sizes.max_target_positions
        shape = (heads, sizes.d_model // heads, length, sizes.max_source_positions)
        self.caches = nn.ModuleList(Cache(*shape) for _ in range(sizes.decoder_layers))
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64), persistent=False)

    def listen(self, features: Tensor) -> Tensor:
        """Keep the keys and values of the sound, and begin a text."""
        sound = self.whisper.model.encoder(features).last_hidden_state[0]
        for cache, layer in self._layers():
            cache.sound_keys.copy_(_split(layer.encoder_attn.k_proj(sound), cache.sound_keys))
            cache.sound_values.copy_(_split(layer.encoder_attn.v_proj(sound), cache.sound_keys))
        self.position.zero_()
        return sound

    def write(self, token: Tensor) -> Tensor:
        """The scores of the next token; `token` has one."""
        decoder = self.whisper.model.decoder
        x = decoder.embed_tokens(token) + decoder.embed_positions.weight[self.position]
        for cache, layer in self._layers():
            y = layer.self_attn_layer_norm(x)
            cache.keys.index_copy_(1, self.position, _split(layer.self_attn.k_proj(y), cache.keys))
            values = _split(layer.self_attn.v_proj(y), cache.keys)
            cache.values.index_copy_(1, self.position, values)
            seen = torch.arange(cache.keys.shape[1]) <= self.position
            x = x + _attend(layer.self_attn, y, cache.keys, cache.values, seen)
            y = layer.encoder_attn_layer_norm(x)
            x = x + _attend(layer.encoder_attn, y, cache.sound_keys, cache.sound_values, None)
            x = x + layer.fc2(layer.activation_fn(layer.fc1(layer.final_layer_norm(x))))
        self.position.add_(1)
        scores: Tensor = self.whisper.proj_out(decoder.layer_norm(x))[0]
        return scores

    def _layers(self) -> zip[tuple[Any, Any]]:
        return zip(self.caches, self.whisper.model.decoder.layers, strict=True)


def _split(x: Tensor, like: Tensor) -> Tensor:
    """Rows as heads."""
    return x.unflatten(-1, (like.shape[0], like.shape[2])).transpose(0, 1)


def _attend(layer: Any, x: Tensor, keys: Tensor, values: Tensor, seen: Tensor | None) -> Tensor:
    """A row attends to keys, those that `seen` allows."""
    mask = None if seen is None else seen[None, None]
    queries = _split(layer.q_proj(x), keys)
    found = F.scaled_dot_product_attention(queries[None], keys[None], values[None], attn_mask=mask)
    projected: Tensor = layer.out_proj(found[0].transpose(0, 1).flatten(1))
    return projected
