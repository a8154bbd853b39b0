"""A model together with the inputs it is called and exported with."""

from dataclasses import dataclass, field
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Example:
    """A model and one call of it; `dynamic_shapes` is what `torch.export.export` takes.

    Calling the model may change it or its inputs, so take a fresh example per run:

        example = lenet()
        logits = example.model(*example.args, **example.kwargs)
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    dynamic_shapes: Any = None
