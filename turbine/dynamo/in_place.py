"""Let kernels update large weights in place, where a graph gives new values for its inputs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from turbine import errors
from turbine.capture.effects import Mutation
from turbine.capture.updates import Update, find_updates, rewrite
from turbine.kernel.call.kernel import Kernel
from turbine.library import update as kernels

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
    placed = []
    for update in found:
        kernel = kernels.make_kernel(update)
        try:
            with unset_fake_temporarily():
                kernel.prepare(_name_arguments(kernel, [_flat(node) for node in update.operands]))
        except errors.TurbineError as error:
            log.info("an update in place does not compile: %s", error)
            continue
        rewrite(graph, update, Mutation(partial(_run, kernel), "update_in_place"))
        placed.append(update)
    return placed


def _flat(node: fx.Node) -> Tensor:
    flat: Tensor = node.meta["val"].view(-1)
    return flat


def _run(kernel: Kernel, *tensors: Tensor) -> None:
    kernel.run(_name_arguments(kernel, tensors))


def _name_arguments(kernel: Kernel, tensors: Any) -> dict[str, Tensor]:
    names = [parameter.name for parameter in kernel.signature.passed]
    return dict(zip(names, tensors, strict=True))
