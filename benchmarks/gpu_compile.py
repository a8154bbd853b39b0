"""torch.compile on an NVIDIA GPU: backend "turbine" beside eager PyTorch and Inductor, in one run.

    python benchmarks/gpu_compile.py --seconds 1

Chains are what a block of a transformer has between its products. Models are called without
gradients, and trained: forward and backward, without an optimizer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any

import gpu_models
import gpu_results
import torch
from timing import Call, round_robin
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import turbine
from turbine import tables
from turbine.dynamo import entry

BACKENDS = ("eager", "inductor", "turbine")
# Calls of a turn, after which it waits for the GPU.
BLOCK = 20
ROWS, COLUMNS = 16384, 4096


def gelu_chain(x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    """A bias, GELU and a residual."""
    return F.gelu(x + bias) + residual


def swiglu(x: Tensor) -> Tensor:
    """SwiGLU of both halves of a tensor."""
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def add_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """A residual, then a layer norm."""
    total = x + residual
    return F.layer_norm(total, (COLUMNS,), weight, bias), total


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """The RMS norm of Llama, as it is written there."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def masked_softmax(x: Tensor, mask: Tensor) -> Tensor:
    """A scale, a mask, and softmax."""
    return torch.softmax((x * 0.125).masked_fill(mask, float("-inf")), -1)


def small_chain(x: Tensor) -> Tensor:
    """Four ops on few elements: the time of launches."""
    return torch.sigmoid(x * 2 + 1) - x


def make_chains() -> dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]]:
    """The chains with their arguments, in bf16."""
    with torch.device("cuda"):
        x, residual = torch.randn(2, ROWS, COLUMNS, dtype=torch.bfloat16)
        weight, bias = torch.randn(2, COLUMNS, dtype=torch.bfloat16)
        mask = torch.ones(ROWS, COLUMNS, dtype=torch.bool).triu(1)
    return {
        "bias, GELU, residual": (gelu_chain, (x, bias, residual)),
        "SwiGLU": (swiglu, (x,)),
        "residual, layer norm": (add_norm, (x, residual, weight, bias)),
        "RMS norm": (rms_norm, (x, weight)),
        "scale, mask, softmax": (masked_softmax, (x, mask)),
        "4 ops, 64 elements": (small_chain, (x[0, :64],)),
    }


def time_chains(seconds: float) -> str:
    """Microseconds of each chain."""
    rows = []
    with torch.no_grad():
        for name, (function, args) in make_chains().items():
            calls = {key: _call(_compiled(function, key), *args) for key in BACKENDS}
            rows.append(_row(name, calls, seconds))
    gpu_results.keep("torch.compile of chains in bf16, seconds", dict(rows))
    return _table(rows, "us", 1e6)


def time_models(names: list[str], seconds: float, *, is_training: bool) -> str:
    """Milliseconds of each model."""
    rows = []
    for name in names:
        model, args, kwargs = gpu_models.make(name, "cuda")
        run = _train if is_training else _infer
        if is_training:
            model.bfloat16().train()
            args, kwargs = torch.utils._pytree.tree_map(_widen, (args, kwargs))
        calls = {key: run(_compiled(model, key), model, args, kwargs) for key in BACKENDS}
        rows.append(_row(name, calls, seconds))
    kind = "training steps in bf16" if is_training else "models in f16"
    gpu_results.keep(f"torch.compile of {kind}, seconds", dict(rows))
    return _table(rows, "ms", 1e3)


def _widen(leaf: Any) -> Any:
    is_float = isinstance(leaf, Tensor) and leaf.is_floating_point()
    return leaf.bfloat16() if is_float else leaf


def _compiled(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    torch._dynamo.reset()
    if backend == "eager":
        return function
    chosen: Any = entry.backend if backend == "turbine" else backend  # it may not be installed
    compiled: Callable[..., Any] = torch.compile(function, backend=chosen, dynamic=False)
    return compiled


def _call(function: Callable[..., Any], *args: Any) -> Call:
    return lambda: function(*args)


def _infer(function: Callable[..., Any], model: Any, args: Any, kwargs: Any) -> Call:
    def call() -> object:
        with torch.no_grad():
            return function(*args, **kwargs)

    return call


def _train(function: Callable[..., Any], model: Any, args: Any, kwargs: Any) -> Call:
    weights = [weight for weight in model.parameters() if weight.requires_grad]

    def call() -> object:
        results = tree_leaves(function(*args, **kwargs))
        loss = sum(one.float().pow(2).mean() for one in results if one.requires_grad)
        return torch.autograd.grad(loss, weights, allow_unused=True)

    return call


def _row(name: str, calls: Mapping[str, Call], seconds: float) -> tuple[str, dict[str, float]]:
    """The seconds of a call by each backend, after comparing results."""
    expected, working = tree_leaves(calls["eager"]()), dict(calls)
    for key in BACKENDS[1:]:
        try:
            for one, other in zip(tree_leaves(calls[key]()), expected, strict=True):
                _check(one, other)
        except Exception as error:  # a peer may fail; the others are still timed
            print(f"{name}, {key}: {str(error)[:500]}", file=sys.stderr)
            del working[key]
    several = {key: _repeat(call) for key, call in working.items()}
    times = round_robin(several, seconds=seconds)
    return name, {key: timing.median / BLOCK for key, timing in times.items()}


def _check(one: Any, other: Any) -> None:
    """Raise for values that differ by more than a fiftieth of the largest, or other types."""
    if not isinstance(other, Tensor):
        return
    assert (one.dtype, one.stride()) == (other.dtype, other.stride())
    difference = (one.float() - other.float()).abs().nan_to_num(0).max().item()
    largest = other.float().abs().nan_to_num(0, 0, 0).max().item()
    assert difference <= 0.02 * max(largest, 1e-3), f"{difference=} {largest=}"


def _repeat(call: Call) -> Call:
    def call_and_wait() -> None:
        for _ in range(BLOCK):
            call()
        torch.cuda.synchronize()

    return call_and_wait


def _table(rows: list[tuple[str, dict[str, float]]], unit: str, factor: float) -> str:
    heads = ["", *(f"{key} {unit}" for key in BACKENDS), "eager over turbine"]
    cells = []
    for name, times in rows:
        known = [f"{factor * times[key]:.3g}" if key in times else "-" for key in BACKENDS]
        ratio = f"{times['eager'] / times['turbine']:.2f}" if "turbine" in times else "-"
        cells.append([name, *known, ratio])
    return tables.table([heads, *cells], right=range(1, len(heads)))


def explain_models(names: list[str]) -> str:
    """What turbine does with each model."""
    reports = []
    for name in names:
        model, args, kwargs = gpu_models.make(name, "cuda")
        with torch.no_grad():
            reports.append(f"{name}: {turbine.explain(model, *args, **kwargs)}")
    return "\n".join(reports)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    models = gpu_models.MODELS
    parser.add_argument("--only", nargs="*", choices=models, default=[*models], metavar="MODEL")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing for each row")
    parser.add_argument("--explain", action="store_true", help="print reports of the models")
    given = parser.parse_args()
    print(time_chains(given.seconds), flush=True)
    print("\ninference, f16\n", time_models(given.only, given.seconds, is_training=False), sep="")
    print("\ntraining, bf16\n", time_models(given.only, given.seconds, is_training=True), sep="")
    if given.explain:
        print(explain_models(given.only))


if __name__ == "__main__":
    main()
