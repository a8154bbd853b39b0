"""Time example calls on this machine, compiled and in PyTorch, and cache the times on disk.

A kind of call is measured when it first appears in a graph: an example is compiled and run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import asdict, dataclass
from functools import partial
from math import inf
from typing import Any

import torch

from turbine import config
from turbine import target as targets
from turbine.capture import convolutions, work
from turbine.capture.decompositions import current_tracing_decompositions
from turbine.compiler import cache, host, pipeline, session, strategies
from turbine.dynamo import onednn
from turbine.dynamo.frozen_call import load_part
from turbine.dynamo.part_code import Weights, lower_part
from turbine.dynamo.parts import LATER
from turbine.ops import specialization
from turbine.progress import progress
from turbine.runtime import device
from turbine.version import __version__

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Example:
    """An example call of an op; `axes` has the axes of each argument that may be dynamic.

    Arguments in `frozen` are weights that are loaded with the code. In a graph, calls that
    `alternates` have ops of PyTorch between them.
    """

    op: Callable[..., Any]
    args: tuple[Any, ...]
    axes: dict[int, tuple[int, ...]]
    flop: float = 1.0
    is_dynamic: bool = False
    frozen: tuple[int, ...] = ()
    alternates: bool = True

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensor arguments."""
        return [argument for argument in self.args if isinstance(argument, torch.Tensor)]

    def run(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Call the op on these tensors."""
        passed = iter(tensors)
        return self.op(*[next(passed) if isinstance(a, torch.Tensor) else a for a in self.args])


@dataclass(frozen=True)
class Seconds:
    """The time of a call with this FLOP count, compiled and in PyTorch; inf if it fails."""

    flop: float
    compiled: float
    library: float

    @property
    def is_complete(self) -> bool:
        """Whether both calls were timed."""
        return self.compiled < inf and self.library < inf


# The times that this process has measured or read, by cache key.
KNOWN: dict[str, Seconds] = {}


def measure_once(kind: str, make: Callable[[], Example]) -> Seconds:
    """The times of an example of this kind; measured unless they are in the cache."""
    with _measuring:
        seconds = recall(kind)
        return keep(kind, measure(kind, make)) if seconds is None else seconds


def recall(kind: str) -> Seconds | None:
    """The times that were measured for this kind."""
    key = cache.key_of([*_conditions(), kind])
    if key not in KNOWN and config.current().cache:
        entry = cache.read(key)
        if entry is not None:
            KNOWN[key] = Seconds(**entry.facts["seconds"])
    return KNOWN.get(key)


def keep(kind: str, seconds: Seconds) -> Seconds:
    """Keep the times of a kind, in the cache as well; those of a failure in this process only."""
    key = cache.key_of([*_conditions(), kind])
    KNOWN[key] = seconds
    if config.current().cache and seconds.is_complete:
        facts = {
            "what": f"{_WHAT}{kind}",
            "conditions": cache.key_of(_conditions()),
            "seconds": asdict(seconds),
        }
        cache.write(key, cache.Entry(b"", facts))
    return seconds


def read_all() -> dict[str, Seconds]:
    """The times on disk that are valid for this machine, these versions and options, by kind.

    Those of whole graphs are left out.
    """
    conditions = cache.key_of(_conditions())
    facts = [listing.facts for listing in cache.listings()]
    found = [one for one in facts if one.get("conditions") == conditions]
    times = {f["what"].removeprefix(_WHAT): Seconds(**f["seconds"]) for f in found}
    return {kind: seconds for kind, seconds in times.items() if not kind.startswith(GRAPH)}


_measuring = threading.RLock()
_WHAT = "seconds of a "
GRAPH = "graph "  # what a kind starts with that is a whole graph


def _conditions() -> list[str]:
    """The machine, versions and options that times are valid for, as parts of a cache key."""
    settings = config.current()
    chip = host.resolve(targets.parse("cpu"))
    threads = f"{torch.get_num_threads()} threads"
    versions = [session.version(), torch.__version__, __version__, str(strategies.VERSION)]
    options = [settings.target, settings.strategy]
    return ["seconds", _VERSION, str(chip), threads, *versions, *options]


# Raise it when lowering changes how fast compiled code is, or when the facts of an entry change.
_VERSION = "13"


def measure(kind: str, make: Callable[[], Example]) -> Seconds:
    """Measure in a new thread: this one may be tracing, where tensors are fake."""
    found: list[Seconds] = []

    def run() -> None:
        try:
            found.append(_seconds(make()))
        except Exception as error:  # such as a dtype that PyTorch does not implement
            log.info("cannot make an example of %s: %s", kind, error)
            found.append(Seconds(1.0, inf, inf))

    thread = threading.Thread(target=copy_context().run, args=(run,), name="calibration")
    with progress(f"measuring: {kind}"):
        thread.start()
        thread.join()
    return found[0]


def _seconds(example: Example) -> Seconds:
    """The minimum of some calls: other load on the machine can only add time.

    Calls alternate if they do so in a graph: threads of PyTorch that wait for work slow compiled
    code down.
    """
    with torch.no_grad():
        compiled = _try(lambda: partial(_compile(example), example.tensors))
        with onednn.as_set_by_user():
            library = _try(lambda: partial(example.run, example.tensors))
            groups = [(compiled, library)] if example.alternates else [(compiled,), (library,)]
            best = [seconds for group in groups for seconds in _best_of(group)]
    return Seconds(example.flop, *best)


def _best_of(calls: Sequence[Callable[[], object] | None]) -> list[float]:
    """The least seconds of each call; they alternate."""
    turns = [[_time(call) for call in calls]]
    while len(turns) < _TURNS and sum(map(sum, turns)) < _LONGEST:
        turns.append([_time(call) for call in calls])
    return list(map(min, zip(*turns, strict=True)))


_TURNS = 15
_LONGEST = 1.0  # seconds of all turns


def _try(make: Callable[[], Callable[[], object]]) -> Callable[[], object] | None:
    """A function that was called once without an error; None if it fails."""
    try:
        call = make()
        call()
    except Exception as error:
        log.info("an example call fails: %s", error)
        return None
    return call


def _time(call: Callable[[], object] | None) -> float:
    if call is None:
        return inf
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _compile(example: Example) -> Callable[[Sequence[Any]], object]:
    indices = [index for index, value in enumerate(example.args) if isinstance(value, torch.Tensor)]
    dynamic = [example.axes.get(index, ()) if example.is_dynamic else () for index in indices]
    leaves = [
        specialization.tensor_leaf(
            tensor, [axis for axis in range(tensor.dim()) if axis not in axes]
        )
        for tensor, axes in zip(example.tensors, dynamic, strict=True)
    ]
    table = convolutions.keep_whole(current_tracing_decompositions())
    traced = specialization.trace_here(example.run, example.tensors, leaves, table)
    target = targets.parse(config.current().target)
    places = traced.graph.graph.find_nodes(op="placeholder")
    frozen = {places[indices.index(index)].name for index in example.frozen}
    code = lower_part(traced.graph, target, Weights(frozen=frozen))
    flat = code.flat
    compiled = pipeline.compile_ir(
        flat.bytecode, target, fingerprint=flat.fingerprint, name="calibration"
    )
    load = work.load(traced.graph.graph)
    driver = device.driver_for(target, load / LATER if example.alternates else load)
    return load_part(compiled.data, driver, code, load)
