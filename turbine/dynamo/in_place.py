"""Let kernels update large weights in place, where a graph gives new values for its inputs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from torch import Tensor, fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.autograd.graph import increment_version

from turbine import errors
from turbine.capture.effects import Mutation
from turbine.capture.updates import Update, drop_unused, find_updates, rewrite
from turbine.kernel.call.kernel import Kernel
from turbine.library import update as kernels
from turbine.runtime import openmp
from turbine.runtime.tensor_call import TensorCall

log = logging.getLogger(__name__)


def place_updates(graph: fx.GraphModule, updated: Mapping[int, str]) -> list[Update]:
    """Replace the ops of updates by kernels, and return these updates.

    `updated` has the results that the caller copies to an input, {index: name}. A result that is
    the input itself is not copied.
    """
    (output,) = graph.graph.find_nodes(op="output")
    inputs = {node.name: node for node in graph.graph.find_nodes(op="placeholder")}
    results = {
        inputs[name]: output.args[0][index] for index, name in updated.items() if name in inputs
    }
    found = find_updates(graph.graph, results, kernels.is_known)
    # The code for the largest is compiled first: it runs on all threads.
    found.sort(key=lambda update: -next(iter(update.written)).meta["val"].numel())
    placed: list[Update] = []
    for update in found:
        kernel = kernels.make_kernel(update)
        try:
            with unset_fake_temporarily():
                call = _load(kernel, update)
        except errors.TurbineError as error:
            log.info("an update in place does not compile: %s", error)
            continue
        run = partial(_run, call, len(update.written), not placed)
        rewrite(graph, update, Mutation(run, "update_in_place"))
        placed.append(update)
    if placed:
        drop_unused(graph)
    return placed


def _load(kernel: Kernel, update: Update) -> TensorCall:
    """The call of a kernel for one update: the memory of written tensors stays the same.

    AOTAutograd has guards against arguments that share memory, so it is not checked again.
    """
    names = [parameter.name for parameter in kernel.signature.passed]
    flat = [node.meta["val"].view(-1) for node in update.operands]
    _, variant = kernel.prepare(dict(zip(names, flat, strict=True)))
    call, written = variant.call, len(update.written)
    slots = [replace(slot, fixed=place < written) for place, slot in enumerate(call.inputs)]
    return TensorCall(call.entry, slots, call.results, call.in_place)


def _run(call: TensorCall, written: int, is_first: bool, *tensors: Tensor) -> None:
    increment_version([one for one in tensors[:written] if not one.is_inference()])
    if is_first:  # updates take a millisecond or more: all cores should be free for them
        openmp.release_threads()
    call(tensors)
