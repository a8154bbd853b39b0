"""The systems that benchmarks/models.py compares: a workload in, a call to be timed out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import Call
from torch import Tensor, nn
from workloads import Example, Task

import turbine
from turbine.cli.comparison import onnx_feed, onnx_session


class NotTaken(Exception):
    """A system does not do such a thing at all: it has no place in that row."""


def eager(workload: Example | Task) -> Call:
    if isinstance(workload, Task):
        return _training_step(workload, lambda function: function)
    return _inference(workload, workload.model)


def compiled(workload: Example | Task, backend: str, **options: Any) -> Call:
    """torch.compile, of dynamic sizes if the row is of dynamic sizes."""
    if isinstance(workload, Task):
        return _training_step(
            workload, lambda function: torch.compile(function, backend=backend, **options)
        )
    dynamic = workload.dynamic_shapes is not None or None
    model = torch.compile(workload.model, backend=backend, dynamic=dynamic, **options)
    return _inference(workload, model)


def frozen(workload: Example | Task, backend: str) -> Call:
    """torch.compile with weights that do not change."""
    if isinstance(workload, Task):
        raise NotTaken
    return compiled(workload, backend, options={"freezing": True})


def artifact(workload: Example | Task, strategy: str = "auto") -> Call:
    if isinstance(workload, Task):
        return _training_artifact(workload, strategy)
    exported = turbine.aot.export(
        workload.model,
        args=workload.args,
        kwargs=workload.kwargs,
        dynamic_shapes=workload.dynamic_shapes,
    )
    with tempfile.TemporaryDirectory() as folder:
        loaded = exported.compile(Path(folder) / "model.turbine", strategy=strategy)
    return _inference(workload, loaded)


def onnx_runtime(workload: Example | Task) -> Call:
    if isinstance(workload, Task):
        raise NotTaken
    session = onnx_session(
        workload.model, workload.args, workload.kwargs, dynamic_shapes=workload.dynamic_shapes
    )
    feed = onnx_feed(session, workload.args, workload.kwargs)
    return lambda: [torch.from_numpy(result) for result in session.run(None, feed)]


SYSTEMS: dict[str, Callable[[Example | Task], Call]] = {
    "eager": eager,
    "inductor": lambda workload: compiled(workload, "inductor"),
    "inductor-frozen": lambda workload: frozen(workload, "inductor"),
    "onnxruntime": onnx_runtime,
    "compile": lambda workload: compiled(workload, "turbine"),
    "compile-frozen": lambda workload: frozen(workload, "turbine"),
    "compile-tuned": lambda workload: compiled(workload, "turbine", mode="max-autotune"),
    "artifact": artifact,
    "artifact-tuned": lambda workload: artifact(workload, "tune"),
}
OURS = ("compile", "compile-frozen", "compile-tuned", "artifact", "artifact-tuned")


def _inference(example: Example, function: Callable[..., Any]) -> Call:
    def call() -> Any:
        with torch.inference_mode():
            return function(*example.args, **example.kwargs)

    return call


def _training_step(task: Task, compile_function: Callable[[Any], Any]) -> Call:
    """The loss, the gradients and a step of AdamW, on a batch that stays the same."""
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=torch.tensor(1e-3))
    batch = next(task.batches())
    loss_of: Callable[..., Tensor] = compile_function(task.loss)
    update = compile_function(optimizer.step)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(task.model, *batch)
        loss.backward()
        update()
        return loss.detach()

    return step


def _training_artifact(task: Task, strategy: str) -> Call:
    """The same step as one artifact; its random numbers are not PyTorch's."""
    if any(isinstance(module, nn.Dropout) and module.p for module in task.model.modules()):
        raise NotTaken
    batch = next(task.batches())

    def loss_of(model: Any, *given: Any) -> Tensor:
        return task.loss(model, *given)

    exported = turbine.aot.export_training_step(
        task.model,
        loss_of,
        optimizer=torch.optim.AdamW(task.model.parameters(), lr=1e-3),
        args=batch,
        predict_args=(),
    )
    loaded = exported.compile(strategy=strategy)
    return lambda: loaded.train_step(*batch)
