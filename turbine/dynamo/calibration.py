"""How long example calls take here, compiled and in PyTorch: measured once, kept on disk.

A call is measured when a graph has one of its kind for the first time: a small program is compiled
and run.
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
from turbine.capture import work
from turbine.compiler import cache, host, pipeline, session, strategies
from turbine.dynamo import onednn
from turbine.lower.importer import DEFAULT_NAME
from turbine.ops import specialization
from turbine.ops.flat_code import lower_graph
from turbine.progress import progress
from turbine.runtime import device
from turbine.runtime.tensor_call import TensorCall
from turbine.version import __version__

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Example:
    """A call of an op, and its count of operations; `axes` may be dynamic, by argument."""

    op: Callable[..., Any]
    args: tuple[Any, ...]
    flop: float
    axes: dict[int, tuple[int, ...]]
    is_dynamic: bool = False

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The arguments that are tensors."""
        return [argument for argument in self.args if isinstance(argument, torch.Tensor)]

    def run(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Call the op on these tensors."""
        passed = iter(tensors)
        return self.op(*[next(passed) if isinstance(a, torch.Tensor) else a for a in self.args])


@dataclass(frozen=True)
class Seconds:
    """How long a call of so many operations takes; infinitely long where it fails."""

    flop: float
    compiled: float
    library: float


def measured(name: str, make: Callable[[], Example]) -> Seconds:
    """The seconds of an example of this name, measured if they are not known."""
    settings = config.current()
    key = cache.key_of([*_machine(), settings.target, settings.strategy, name])
    with _measuring:
        known = _here.get(key)
        if known is None:
            entry = cache.read(key) if settings.cache else None
            known = _measure(name, make) if entry is None else Seconds(**entry.facts["seconds"])
            _here[key] = known
            if settings.cache and entry is None:
                facts = {"what": f"{_MEASURED}{name}", "seconds": asdict(known)}
                cache.write(key, cache.Entry(b"", facts))
    return known


def kept() -> dict[str, Seconds]:
    """What is kept on disk, by name; of other machines and versions too."""
    facts = [listing.facts for listing in cache.listings()]
    found = [one for one in facts if str(one.get("what")).startswith(_MEASURED)]
    return {f["what"].removeprefix(_MEASURED): Seconds(**f["seconds"]) for f in found}


_MEASURED = "seconds of a "


_measuring = threading.RLock()
_here: dict[str, Seconds] = {}


def _machine() -> list[str]:
    """What the times depend on."""
    chip = host.resolve(targets.parse("cpu"))
    versions = [session.version(), torch.__version__, __version__, str(strategies.VERSION)]
    return ["seconds", str(chip), f"{torch.get_num_threads()} threads", *versions]


def _measure(name: str, make: Callable[[], Example]) -> Seconds:
    """Measure in a thread of its own: this one may be tracing, where no tensor has data."""
    found: list[Seconds] = []
    run = partial(copy_context().run, lambda: found.append(_seconds(make())))
    thread = threading.Thread(target=run, name="calibration")
    with progress(f"measuring: {name}"):
        thread.start()
        thread.join()
    return found[0]


def _seconds(example: Example) -> Seconds:
    """The best of some calls of each side in turns: others that use the machine only slow one."""
    with torch.no_grad():
        compiled = _try(lambda: partial(_compile(example), example.tensors))
        with onednn.as_set_by_user():
            library = _try(lambda: partial(example.run, example.tensors))
            turns = [(_time(compiled), _time(library)) for _ in range(_TURNS)]
    return Seconds(example.flop, *map(min, zip(*turns, strict=True)))


_TURNS = 15


def _try(make: Callable[[], Callable[[], object]]) -> Callable[[], object] | None:
    """Something to call, if there is: what an example meets, all calls of its kind may meet."""
    try:
        call = make()
        call()
    except Exception as error:  # such as a dtype for which there is no code
        log.info("an example fails: %s", error)
        return None
    return call


def _time(call: Callable[[], object] | None) -> float:
    if call is None:
        return inf
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _compile(example: Example) -> TensorCall:
    places = [place for place, value in enumerate(example.args) if isinstance(value, torch.Tensor)]
    dynamic = [example.axes.get(place, ()) if example.is_dynamic else () for place in places]
    leaves = [
        specialization.tensor_leaf(
            tensor, [axis for axis in range(tensor.dim()) if axis not in axes]
        )
        for tensor, axes in zip(example.tensors, dynamic, strict=True)
    ]
    traced = specialization.trace_here(example.run, example.tensors, leaves)
    target = targets.parse(config.current().target)
    code = lower_graph("example", traced.graph, partial(host.resolve, target), str)
    compiled = pipeline.compile_ir(code.bytecode, target, fingerprint=code.fingerprint)
    driver = device.driver_for(target, work.mflop(traced.graph.graph))
    return TensorCall.load(compiled.data, driver, DEFAULT_NAME, code.inputs, code.results)
