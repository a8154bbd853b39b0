"""The systems that benchmarks/models.py compares: a workload in, a call to be timed out."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import Call
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from workloads import Example, Task

import turbine
from turbine import errors


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
    session = onnx_session(workload, torch.get_num_threads())
    tensors = [leaf for leaf in tree_leaves((workload.args, workload.kwargs)) if _is_tensor(leaf)]
    inputs = session.get_inputs()
    feed = {one.name: tensor.numpy() for one, tensor in zip(inputs, tensors, strict=True)}
    return lambda: [torch.from_numpy(result) for result in session.run(None, feed)]


def onnx_session(example: Example, threads: int) -> Any:
    """The model in ONNX Runtime, for calls on so many threads."""
    try:
        import onnxruntime
    except ImportError as error:
        raise errors.MissingExtra(
            "onnxruntime is not installed", hint="pip install turbine[bench]"
        ) from error
    program = torch.onnx.export(
        example.model,
        example.args,
        kwargs=example.kwargs,
        dynamic_shapes=example.dynamic_shapes,
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    file = io.BytesIO()
    program.save(file)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(
        file.getvalue(), options, providers=["CPUExecutionProvider"]
    )


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


def _is_tensor(leaf: object) -> bool:
    return isinstance(leaf, Tensor)
