"""`turbine bench --compare`: a model and the arguments of a call in, what to time out."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.utils._pytree import tree_leaves, tree_map

from turbine import errors
from turbine.capture.export_noise import mute_log
from turbine.cli import sources
from turbine.cli.example_inputs import to_tensor
from turbine.cli.factory import importable_from
from turbine.extras import import_extra
from turbine.progress import progress


@dataclass(frozen=True)
class Call:
    """A model in eager PyTorch, or the file of a program of ONNX, and the arguments of a call."""

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def source_of(provenance: Mapping[str, Any], given: str | None) -> str:
    """The text that names the model: the given one, or that which `turbine compile` had."""
    found = provenance.get("source") if given is None else given
    if found is None:
        raise errors.ConfigError(
            "the artifact does not say which model it was compiled from",
            hint="add --model pkg.module:name or --model program.pt2",
        )
    sources.check(found)
    return str(found)


def calls(
    systems: Sequence[str],
    source: str,
    artifact: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> dict[str, Callable[[], object]]:
    """The artifact's call and that of each system that can run the model, on the same tensors."""
    for name in systems:
        if name not in SYSTEMS:
            raise errors.ConfigError(errors.unknown("system", name, SYSTEMS))
    args, kwargs = tree_map(_as_tensor, (args, kwargs))
    with redirect_stdout(sys.stderr), importable_from(Path.cwd()):
        call = Call(_model(source, systems), args, kwargs)
        found: dict[str, Callable[[], object]] = {"artifact": lambda: artifact(*args, **kwargs)}
        for name in systems:
            made = _prepare(name, call)
            if made is not None:
                found[name] = made
    return found


def _model(source: str, systems: Sequence[str]) -> Any:
    """What the systems run: ONNX Runtime alone takes a program of ONNX as it is."""
    is_for_onnx = source.endswith(sources.ONNX) and set(systems) == {"onnxruntime"}
    return Path(source) if is_for_onnx else sources.load_model(source)


def _prepare(name: str, call: Call) -> Callable[[], object] | None:
    """The call of one system, run once; None, and a line on stderr, if it cannot run the model."""
    with progress(f"preparing {name}"), torch.no_grad():
        try:
            made = torch.no_grad()(SYSTEMS[name](call))
            made()
        # Whatever a system raises, the others are still worth timing.
        except Exception as error:
            print(f"{name} cannot run the model: {str(error).splitlines()[0]}", file=sys.stderr)
            return None
    return made


def _as_tensor(value: Any) -> Any:
    return to_tensor(value) if isinstance(value, numpy.ndarray) else value


def _eager(call: Call) -> Callable[[], Any]:
    return lambda: call.model(*call.args, **call.kwargs)


def _inductor(call: Call) -> Callable[[], Any]:
    compiled: Callable[..., Any] = torch.compile(call.model)
    return lambda: compiled(*call.args, **call.kwargs)


def _onnx_runtime(call: Call) -> Callable[[], Any]:
    if isinstance(call.model, Path):
        session = _session(str(call.model))
    else:
        assert isinstance(call.model, torch.nn.Module)
        session = onnx_session(call.model, call.args, call.kwargs)
    feed = onnx_feed(session, call.args, call.kwargs)
    return lambda: session.run(None, feed)


def onnx_session(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    dynamic_shapes: Any = None,
    threads: int | None = None,
) -> Any:
    """The model in ONNX Runtime, for calls on so many threads; PyTorch's number by default."""
    import_extra("onnxruntime", "bench")
    with mute_log(_OF_EXPORTER), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        program = torch.onnx.export(
            model, args, kwargs=kwargs, dynamic_shapes=dynamic_shapes, dynamo=True, verbose=False
        )
    assert program is not None
    return _session(program.model_proto.SerializeToString(), threads)


# The log that tells which libraries are not installed.
_OF_EXPORTER = "torch.onnx._internal.exporter._registration"


def _session(program: bytes | str, threads: int | None = None) -> Any:
    """The bytes or the path of a program of ONNX in ONNX Runtime."""
    onnxruntime = import_extra("onnxruntime", "bench")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads() if threads is None else threads
    return onnxruntime.InferenceSession(program, options, providers=["CPUExecutionProvider"])


def onnx_feed(session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arrays for a call of ONNX Runtime, by name."""
    leaves = tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    names = [one.name for one in session.get_inputs()]
    return {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}


SYSTEMS = {"eager": _eager, "inductor": _inductor, "onnxruntime": _onnx_runtime}
