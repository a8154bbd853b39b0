"""Named flag sets for the compiler, in the order they are tried."""

from __future__ import annotations

from dataclasses import dataclass

from turbine import errors

# Part of the cache key: raise it when a strategy's flags change their meaning.
VERSION = 9

# Bytes by which a weight may grow when it is packed. Weights that grow by more are packed in each
# call; IREE's own limit is 1 MB, which the padding of a large weight exceeds.
_MOST_PADDING = 16 << 20

# True for every strategy: torch IR is recognized by its dialect, f64 stays f64 (IREE narrows it
# silently by default), and checks of indices stay (O2 leaves them out by default).
COMMON = (
    "--iree-input-type=auto",
    "--iree-input-demote-f64-to-f32=false",
    "--iree-opt-strip-assertions=false",
    f"--iree-opt-const-expr-max-size-increase-threshold={_MOST_PADDING}",
)

# A loop of several axes is divided in tiles of this many elements of a row, in place of 64: fewer
# hop from page to page. Loops are divided further until there is work for every thread.
OF_PROCESS = ("--iree-llvmcpu-distribution-size=1024",)

# A kernel's scratch arrays live on a worker thread's stack; 64 KiB is known to fit.
_STACK = "--iree-llvmcpu-stack-allocation-limit=65536"
# Not --iree-opt-data-tiling, which is a little faster: with it IREE 3.13 packs an operand of a
# batched product, made from sums of its rows, wrongly where the count of rows is 7, 15 or dynamic.
_TILING = "--iree-global-opt-data-tiling"
_IM2COL = "--iree-global-opt-use-im2col-for-convs"


@dataclass(frozen=True)
class Strategy:
    """A name and its flags; `kinds` are the kinds of target it makes sense for."""

    name: str
    flags: tuple[str, ...]
    kinds: tuple[str, ...]
    why: str
    isolated: bool = False  # no op is fused with another


TABLE = (
    Strategy(
        "tiled",
        (_TILING, _IM2COL, _STACK, "--iree-opt-level=O0"),
        ("cpu",),
        "matmuls and convolutions over packed tiles",
    ),
    Strategy(
        "tiled-O2",
        (_TILING, _IM2COL, _STACK, "--iree-opt-level=O2"),
        ("cpu",),
        "packed tiles, fused more eagerly: better for a few models, worse for most",
    ),
    Strategy(
        "plain",
        (_STACK, "--iree-opt-level=O2"),
        ("cpu", "cuda", "hip", "vulkan"),
        "no packing, optimized",
    ),
    Strategy(
        "plain-O0",
        ("--iree-opt-level=O0",),
        ("cpu", "cuda", "hip", "vulkan"),
        "the compiler's defaults",
    ),
    Strategy(
        "isolated",
        (_STACK, "--iree-opt-level=O0"),
        ("cpu", "cuda", "hip", "vulkan"),
        "no op fused with another: slow, for programs whose fused loops do not compile",
        isolated=True,
    ),
)
AUTO = "auto"
TUNE = "tune"


def for_kind(kind: str) -> list[Strategy]:
    """The strategies for a kind of target, best guess first."""
    return [s for s in TABLE if kind in s.kinds]


def choose(name: str, kind: str) -> list[Strategy]:
    """The strategies to try for an option value: all of them for "auto" and "tune"."""
    offered = {s.name: s for s in for_kind(kind)}
    if name in (AUTO, TUNE):
        return list(offered.values())
    if name not in offered:
        valid = [AUTO, TUNE, *offered]
        raise errors.ConfigError(errors.unknown(f"strategy for {kind}", name, valid))
    return [offered[name]]
