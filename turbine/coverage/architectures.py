"""Judge architectures of the transformers package as exports.

Each is built from a tiny configuration with random weights, exported with the sizes of its
arguments and with a dynamic batch size, and compared with eager: values, dtypes and shapes.
"""

from __future__ import annotations

from typing import Any

import torch

from turbine.coverage import exported, media_models, text_models
from turbine.coverage.answers import first_line
from turbine.coverage.front_door import EXPORT_BY_ARCHITECTURE, FrontDoor
from turbine.coverage.samples import Case, set_seed
from turbine.coverage.tiny_models import Architecture, transformers
from turbine.coverage.verdicts import NOT_TRACED, Verdict

STATIC, DYNAMIC = WAYS = ("static", "dynamic batch")
# A dynamic batch size is traced with one size and run with another.
_BATCH, _OTHER_BATCH = 2, 3
_BY_KIND = (*text_models.KINDS, *media_models.KINDS)
ARCHITECTURES = {name: one for kind in _BY_KIND for name, one in kind.items()}


def architectures() -> dict[str, Architecture]:
    """All architectures by name, if the transformers package is installed."""
    transformers()
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


def _kind(name: str) -> str:
    return ARCHITECTURES[name].kind


def _version() -> str:
    return f"transformers {transformers().__version__}"


FRONT_DOOR = FrontDoor(
    architectures,
    judge,
    tuple(dict.fromkeys(one.kind for one in ARCHITECTURES.values())),
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
