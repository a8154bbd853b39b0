"""Lines of the user's code in graphs that are traced more than once.

make_fx records where an op is called. An op of the backward pass is called by PyTorch: it has the
line of the op whose gradient it computes, which anomaly mode keeps.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch._aot_autograd.logging_utils import setup_stacktrace_preservation_hooks
from torch.fx import traceback
from torch.fx.experimental.proxy_tensor import make_fx

from turbine import errors
from turbine.capture.determinants import fix_layouts


def trace(
    function: Callable[..., Any], args: Sequence[Any], otherwise: Callable[..., Any]
) -> fx.GraphModule:
    """Trace a function, whose gradients are those of `gradients`.

    Ops outside of a model's forward get the line of the function `otherwise`.
    """
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        graph = make_fx(function, record_stack_traces=True)(*args)
    for node in graph.graph.nodes:
        if node.op == "call_function":
            node.stack_trace = _model_frames(node.stack_trace or "") or _frame(otherwise)
    fix_layouts(graph.graph)
    return graph


def gradients(
    loss: Tensor, wanted: Sequence[Tensor], tangent: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    """The gradients of a loss; None for a tensor that it does not depend on."""
    if loss.grad_fn is None:
        raise errors.ExportError(
            "the loss has no gradient",
            hint="a parameter or an argument that it uses must have requires_grad=True",
        )
    setup_stacktrace_preservation_hooks([loss.grad_fn])
    with traceback.preserve_node_meta():
        return torch.autograd.grad(loss, wanted, tangent, allow_unused=True)


@contextmanager
def at(function: Callable[..., Any]) -> Iterator[None]:
    """Give the ops that are traced the line of a function, for code that is not a model's."""
    with traceback.preserve_node_meta():
        traceback.set_stack_trace([_frame(function)])
        yield


def replay(graph: fx.GraphModule) -> Callable[..., Any]:
    """The function of a traced graph, whose ops keep their lines when it is traced again."""

    def run(*args: Any) -> Any:
        with traceback.preserve_node_meta():
            return fx.Interpreter(graph).run(*args)

    return run


def _frame(function: Callable[..., Any]) -> str:
    """A stack trace with the line of a function, or of a module's forward."""
    called = function.forward if isinstance(function, nn.Module) else function
    code = getattr(inspect.unwrap(called), "__code__", None)
    return f'File "{code.co_filename}", line {code.co_firstlineno}, in forward' if code else ""


def _model_frames(stack_trace: str) -> str:
    """The frames of a stack trace in functions called forward, of models and not of fx."""
    frames = re.findall(r'File "(?![^"]*/torch/fx/)[^"]*", line \d+, in forward\b', stack_trace)
    return "\n".join(frames)
