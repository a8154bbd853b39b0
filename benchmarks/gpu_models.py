"""Artifacts on an NVIDIA GPU beside PyTorch: eager, CUDA graphs of Inductor, and IREE's code alone.

Models are compiled where there is a compiler, and timed where there is a GPU:

    python benchmarks/gpu_models.py --compile artifacts            # on any machine
    python benchmarks/gpu_models.py --run artifacts --seconds 1    # on one with a GPU

Weights are random, and made again from a seed where the models are timed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gpu_results
import torch
from timing import Call, round_robin
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import turbine
from turbine import errors, tables, zoo
from turbine.zoo.example import Example

TARGET = "cuda:sm_90"
PLAIN = ".iree"  # before the suffix, of artifacts without kernels of the library


def bert() -> Example:
    """BERT base with 6 layers: 8 texts of 128 tokens."""
    return zoo.bert(batch=8, vocab=8192, dim=768)


def gpt2() -> Example:
    """GPT-2 with 6 layers: 4 texts of 512 tokens."""
    return zoo.gpt2(batch=4, length=512, dim=768, heads=12)


def llama() -> Example:
    """Llama of 1B's sizes with 6 layers: the prefill of 1024 tokens."""
    return zoo.llama(length=1024, dim=2048, hidden=5632, heads=32, kv_heads=8)


def vit() -> Example:
    """A vision transformer of the zoo's sizes: 16 images."""
    return zoo.vit(batch=16)


def resnet18() -> Example:
    """ResNet-18: 8 images."""
    return zoo.resnet18(batch=8)


def encoder() -> Example:
    """Four layers of nn.TransformerEncoder: 16 texts of 512 tokens."""
    return zoo.transformer_encoder(batch=16, length=512, dim=1024, heads=16)


MODELS: dict[str, Callable[[], Example]] = {
    made.__name__: made for made in (bert, gpt2, llama, encoder, vit, resnet18)
}


def make(name: str, device: str = "cpu") -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A model and its arguments, in half precision."""

    def narrow(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return (leaf.half() if leaf.is_floating_point() else leaf).to(device)

    example = MODELS[name]()
    args, kwargs = tree_map(narrow, (example.args, example.kwargs))
    return example.model.half().eval().to(device), args, kwargs


@contextmanager
def without_library() -> Iterator[None]:
    """Compile with IREE's code alone."""
    from turbine.library import placement  # here, since it needs the compiler

    finders = placement.FINDERS.pop("cuda")
    try:
        yield
    finally:
        placement.FINDERS["cuda"] = finders


def compile_models(folder: Path, names: list[str]) -> None:
    """Write an artifact of each model with kernels of the library, and one without."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        model, args, kwargs = make(name)
        _compile(turbine.aot.export(model, args=args, kwargs=kwargs), folder / f"{name}.turbine")
        with without_library():
            exported = turbine.aot.export(model, args=args, kwargs=kwargs)
            _compile(exported, folder / f"{name}{PLAIN}.turbine")


def _compile(exported: Any, path: Path) -> None:
    started = time.perf_counter()
    try:
        exported.compile(path, archive=path.with_suffix(".irpa"), target=TARGET, cache=False)
        print(f"{path.name}: compiled in {time.perf_counter() - started:.0f} s", flush=True)
    except errors.TurbineError as error:
        print(f"{path.name}: {error}", file=sys.stderr, flush=True)


def time_models(folder: Path, names: list[str], seconds: float) -> str:
    """A table of milliseconds, and of eager's over ours."""
    rows = []
    for name in names:
        times = _time(folder, name, seconds)
        gpu_results.keep("artifacts in f16, seconds", {name: times})
        row = [f"{1e3 * times[key]:.2f}" if key in times else "-" for key in SYSTEMS]
        ours = times.get("turbine")
        rows.append([name, *row, f"{times['eager'] / ours:.2f}" if ours else "-"])
    heads = ["model", *(f"{key} ms" for key in SYSTEMS), "ratio"]
    return tables.table([heads, *rows], right=range(1, len(heads)))


SYSTEMS = ("eager", "inductor", "iree", "turbine")


def _time(folder: Path, name: str, seconds: float) -> dict[str, float]:
    model, args, kwargs = make(name, "cuda")
    held = dict([*model.named_parameters(), *model.named_buffers()])
    weights = {key: value.detach().cpu() for key, value in held.items()}
    compiled = torch.compile(model, mode="reduce-overhead")
    calls: dict[str, Call] = {
        "eager": lambda: model(*args, **kwargs),
        "inductor": lambda: compiled(*args, **kwargs),
    }
    for key, path in (("turbine", f"{name}.turbine"), ("iree", f"{name}{PLAIN}.turbine")):
        if (folder / path).exists():
            artifact = turbine.load(folder / path, weights=weights)
            calls[key] = lambda artifact=artifact: artifact(*args, **kwargs)
    with torch.no_grad():
        expected = calls["eager"]()
        for key in [*calls]:
            try:
                _check(key, calls[key](), expected)
            except (errors.TurbineError, AssertionError, RuntimeError) as error:
                print(f"{name}, {key}: {str(error)[:500]}", file=sys.stderr)
                del calls[key]
        waiting = {key: _wait_after(call) for key, call in calls.items()}
        times = round_robin(waiting, seconds=seconds, block=3)
    return {key: timing.median for key, timing in times.items()}


def _check(name: str, result: Any, expected: Any) -> None:
    """Raise for values that differ by more than a fiftieth of the largest."""
    for one, other in zip(tree_leaves(result), tree_leaves(expected), strict=True):
        difference = (one.float() - other.float()).abs().max().item()
        print(f"  {name}: largest difference {difference:.4f}", file=sys.stderr)
        assert difference <= 0.02 * max(1.0, other.float().abs().max().item()), "a wrong result"


def _wait_after(call: Call) -> Call:
    def call_and_wait() -> None:
        call()
        torch.cuda.synchronize()

    return call_and_wait


def main() -> None:
    """Compile or time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compile", type=Path, metavar="FOLDER", help="write artifacts")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="time those of a folder")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=[*MODELS], metavar="MODEL")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing for each model")
    given = parser.parse_args()
    if given.compile is not None:
        compile_models(given.compile, given.only)
    if given.run is not None:
        print(time_models(given.run, given.only, given.seconds))


if __name__ == "__main__":
    main()
