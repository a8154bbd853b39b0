"""What benchmarks/models.py times: calls of models, and steps of training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

from turbine import zoo
from turbine.zoo.attention import PreNormBlock
from turbine.zoo.encoder import Bert
from turbine.zoo.example import Example
from turbine.zoo.seeds import build_seeded, generator
from turbine.zoo.training import TASKS, TINY_TASKS, Task


@dataclass(frozen=True)
class AmongEager:
    """A call of a model that follows one of eager PyTorch, which is timed with it."""

    example: Example
    eager: Callable[[], object]


Workload = Example | Task | AmongEager


class Pointwise(nn.Module):
    """Four small ops: what is timed is the call."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.relu(x + y) * 2 - y


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class Classifier(nn.Module):
    """A transformer that gives one row of scores for each sequence."""

    def __init__(self, vocab: int, dim: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.blocks = nn.Sequential(*(PreNormBlock(dim, heads) for _ in range(layers)))
        self.head = nn.Linear(dim, 10)

    def forward(self, ids: Tensor) -> Tensor:
        scores: Tensor = self.head(self.blocks(self.tokens(ids)).mean(dim=1))
        return scores


class CachedAttention(nn.Module):
    """One token attends to those of a cache that is full up to `position`."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.project = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, position: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        keys = keys.index_copy(2, position, k)
        values = values.index_copy(2, position, v)
        seen = (torch.arange(keys.shape[2]) <= position)[None]
        x = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
        projected: Tensor = self.project(x.transpose(1, 2).flatten(2))
        return projected


class DecodeStep(nn.Module):
    """A step of a Llama: products of one row, over a cache of keys and values."""

    def __init__(self, dim: int, hidden: int, layers: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(dim) for _ in range(2 * layers))
        self.attentions = nn.ModuleList(CachedAttention(dim, heads) for _ in range(layers))
        self.gates = nn.ModuleList(nn.Linear(dim, hidden, bias=False) for _ in range(layers))
        self.ups = nn.ModuleList(nn.Linear(dim, hidden, bias=False) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(hidden, dim, bias=False) for _ in range(layers))

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, position: Tensor) -> Tensor:
        for layer, attention in enumerate(self.attentions):
            y = self.norms[2 * layer](x)
            x = x + attention(y, keys[layer], values[layer], position)
            y = self.norms[2 * layer + 1](x)
            x = x + self.downs[layer](F.silu(self.gates[layer](y)) * self.ups[layer](y))
        return x


class InvertedResidual(nn.Module):
    """A 1x1 convolution to more channels, a depthwise one, and a 1x1 convolution back."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.has_shortcut = stride == 1 and inputs == outputs
        self.layers = nn.Sequential(
            *_normed_convolution(inputs, inner, 1),
            nn.ReLU6(),
            *_normed_convolution(inner, inner, 3, stride=stride, padding=1, groups=inner),
            nn.ReLU6(),
            *_normed_convolution(inner, outputs, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.has_shortcut else y


def _normed_convolution(inputs: int, outputs: int, size: int, **options: int) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, size, bias=False, **options)
    return [convolution, nn.BatchNorm2d(outputs)]


class MobileNet(nn.Sequential):
    """MobileNetV2 in small: `width` is the number of channels after the first convolution."""

    def __init__(self, width: int) -> None:
        widths = [width, width, 2 * width, 2 * width, 4 * width, 4 * width]
        strides = [1, 2, 1, 2, 1]
        blocks = [
            InvertedResidual(inputs, outputs, stride, expansion=4)
            for inputs, outputs, stride in zip(widths[:-1], widths[1:], strides, strict=True)
        ]
        super().__init__(
            *_normed_convolution(3, width, 3, stride=2, padding=1),
            nn.ReLU6(),
            *blocks,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * width, 100),
        )


class AudioNet(nn.Sequential):
    """1-d convolutions over a waveform, each of half the length and twice the channels."""

    def __init__(self, width: int) -> None:
        layers: list[nn.Module] = []
        inputs = 1
        for outputs in (width, 2 * width, 4 * width, 8 * width):
            layers += [nn.Conv1d(inputs, outputs, 9, stride=2, padding=4), nn.GELU()]
            inputs = outputs
        super().__init__(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(inputs, 35))


def pointwise(*, elements: int = 64) -> Example:
    x, y = torch.randn(2, elements, generator=generator())
    return Example(Pointwise(), (x, y))


def attention(*, batch: int = 4, heads: int = 4, length: int = 256, dim: int = 64) -> Example:
    q, k, v = torch.randn(3, batch, heads, length, dim, generator=generator())
    sizes = {0: Dim("batch", min=1, max=64), 2: Dim("length", min=2, max=1024)}
    return Example(Attention(), (q, k, v), dynamic_shapes=({**sizes}, {**sizes}, {**sizes}))


def classifier(
    *, batch: int = 4, length: int = 256, dim: int = 128, layers: int = 2, heads: int = 4
) -> Example:
    ids = torch.randint(1000, (batch, length), generator=generator())
    sizes = {0: Dim("batch", min=1, max=64), 1: Dim("length", min=2, max=1024)}
    model = build_seeded(lambda: Classifier(1000, dim, layers, heads))
    return Example(model, (ids,), dynamic_shapes=(sizes,))


def decode_step(
    *, dim: int = 512, hidden: int = 1376, layers: int = 4, heads: int = 8, cache: int = 512
) -> Example:
    random = generator()
    x = torch.randn(1, 1, dim, generator=random)
    keys, values = torch.randn(2, layers, 1, heads, cache, dim // heads, generator=random)
    model = build_seeded(lambda: DecodeStep(dim, hidden, layers, heads))
    return Example(model, (x, keys, values, torch.tensor([cache // 2])))


def mobilenet(*, batch: int = 1, size: int = 128, width: int = 16) -> Example:
    images = torch.randn(batch, 3, size, size, generator=generator())
    return Example(build_seeded(lambda: MobileNet(width)), (images,))


def audio(*, batch: int = 4, length: int = 4000, width: int = 16) -> Example:
    waves = torch.randn(batch, 1, length, generator=generator())
    return Example(build_seeded(lambda: AudioNet(width)), (waves,))


def of_dtype(example: Example, dtype: torch.dtype) -> Example:
    """The same with weights and inputs of another type."""
    args = tuple(arg.to(dtype) for arg in example.args)
    return replace(example, model=example.model.to(dtype), args=args)


def among_eager(example: Example) -> AmongEager:
    """The same after a matmul of eager PyTorch."""
    x = torch.randn(256, 256, generator=generator())
    return AmongEager(example, lambda: x @ x)


def bert_task(*, batch: int, length: int, vocab: int, dim: int, layers: int, heads: int) -> Task:
    """Predict whether a sequence begins with a token of the first half of the vocabulary."""
    model = build_seeded(lambda: Bert(vocab, length, dim, layers, heads))

    def draw(random: torch.Generator) -> tuple[Tensor, ...]:
        ids = torch.randint(1, vocab, (batch, length), generator=random)
        return ids, torch.ones_like(ids), torch.zeros_like(ids), (ids[:, 0] * 2 >= vocab).long()

    def loss(model: nn.Module, ids: Tensor, mask: Tensor, types: Tensor, labels: Tensor) -> Tensor:
        scores: Tensor = model(ids, mask, types)["pooler_output"]
        return F.cross_entropy(scores, labels)

    # Dropout draws other numbers under each system.
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return Task(model.train(), draw, loss)


def _rows(models: dict[str, Callable[..., Any]], tasks: dict[str, Any]) -> dict[str, Any]:
    """Every row but those whose sizes differ between the table and its tests."""
    mlp = models["mlp"]
    return {
        **models,
        "mlp_1_row": partial(mlp, batch=1),
        "mlp_8_rows": partial(mlp, batch=8),
        "mlp_bf16": lambda: of_dtype(mlp(), torch.bfloat16),
        "mlp_f16": lambda: of_dtype(mlp(), torch.float16),
        "mlp_among_eager": lambda: among_eager(mlp()),
        **{f"train_{name}": task for name, task in tasks.items()},
    }


ROWS: dict[str, Callable[[], Workload]] = {
    **_rows(zoo.MODELS, TASKS),
    "pointwise_64": pointwise,
    "resnet18_batch_8": partial(zoo.resnet18, batch=8),
    "attention_dynamic": attention,
    "classifier_dynamic": classifier,
    "llama_decode": decode_step,
    "mobilenet": mobilenet,
    "audio": audio,
    "train_bert": partial(bert_task, batch=4, length=128, vocab=2048, dim=256, layers=4, heads=4),
}

TINY: dict[str, Callable[[], Workload]] = {
    **_rows(zoo.TINY, TINY_TASKS),
    "pointwise_64": pointwise,
    "attention_dynamic": partial(attention, batch=2, heads=2, length=8, dim=4),
    "classifier_dynamic": partial(classifier, batch=2, length=8, dim=8, layers=1, heads=2),
    "llama_decode": partial(decode_step, dim=16, hidden=24, layers=1, heads=2, cache=8),
    "mobilenet": partial(mobilenet, size=16, width=4),
    "audio": partial(audio, batch=1, length=64, width=2),
    "train_bert": partial(bert_task, batch=2, length=8, vocab=32, dim=16, layers=1, heads=2),
}
