"""Trace the loss of a model with its gradients, and split the graph into forward and backward."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.export import Dim
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as torch_pytree

from turbine.capture.one_thread import traces
from turbine.capture.trace_lines import gradients, replay, trace
from turbine.capture.training_step import (
    RANDOM,
    ModelLoss,
    Root,
    check_apart,
    fake_leaves,
    with_forward,
    without_onednn,
)


@dataclass(frozen=True)
class Joint:
    """Modules for torch.export: `forward(*args) -> loss, saved` and `backward(saved)`."""

    forward: nn.Module
    backward: nn.Module
    saved: tuple[Any, ...]  # an example
    saved_shapes: tuple[Any, ...]  # which of its sizes vary
    parameters: tuple[str, ...]  # that have a gradient
    inputs: tuple[str, ...]  # arguments that have one


@traces
def trace_joint(
    of: ModelLoss,
    args: tuple[Any, ...],
    signature: inspect.Signature,
    dynamic_shapes: Any,
    seed: int,
) -> Joint:
    """Trace a loss, and its gradients by parameters and by arguments that require them."""
    tensors = {name: one.detach() for one, name in of.names.items()}
    tensors |= dict(of.model.named_buffers()) | {RANDOM: of.stream.initial_state(seed)}
    check_apart(tensors)
    return _Trace(
        of, args, signature, tensors, fake_leaves(args, signature, dynamic_shapes)
    ).split()


class _Trace:
    """A trace of the loss as a function of flat tensors: state, arguments, the loss's gradient."""

    def __init__(
        self,
        of: ModelLoss,
        args: tuple[Any, ...],
        signature: inspect.Signature,
        state: dict[str, Tensor],
        fakes: list[Any],
    ) -> None:
        self.of, self.args, self.signature, self.state, self.fakes = (
            of,
            args,
            signature,
            state,
            fakes,
        )
        leaves, self.in_tree = torch_pytree.tree_flatten(args)
        self.places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.trained = [name for one, name in of.names.items() if one.requires_grad]
        self.written = [name for name in state if name not in of.names.values()]
        names = _leaf_names(args, [*signature.parameters])
        self.moved = {place: names[place] for place in self.places if leaves[place].requires_grad}
        self.reached: list[str] = []

    def split(self) -> Joint:
        modes = (one.fake_mode for one in self.fakes if isinstance(one, FakeTensor))
        mode = next(modes, None) or FakeTensorMode()
        primals = [mode.from_tensor(one, static_shapes=True) for one in self.state.values()]
        primals += [self.fakes[place].detach() for place in self.places]
        with mode, torch.no_grad(), without_onednn():
            given = [*primals, torch.ones(())]
            whole = make_fx(functionalize(replay(trace(self._flat, given, self.of.loss_fn))))(
                *given
            )
        _prepare(whole)
        forward, backward = min_cut_rematerialization_partition(
            whole, given, num_fwd_outputs=1 + len(self.written)
        )
        return self._join(forward, backward)

    def _flat(self, *given: Tensor) -> list[Tensor]:
        *primals, tangent = given
        values = dict(zip(self.state, primals, strict=False))
        values |= {name: values[name].clone() for name in self.written}
        weights = {name: values[name].detach().requires_grad_() for name in self.trained}
        leaves = [*self.fakes]
        for place, tensor in zip(self.places, primals[len(values) :], strict=True):
            leaves[place] = tensor.detach().requires_grad_(place in self.moved)
        args = torch_pytree.tree_unflatten(leaves, self.in_tree)
        with torch.enable_grad(), self.of.in_mode(is_training=True):
            loss = self.of.loss({**values, **weights}, args)
            wanted = [*weights.values(), *(leaves[place] for place in self.moved)]
            grads = gradients(loss, wanted, tangent.to(loss.dtype))
        named = zip([*weights, *self.moved.values()], grads, strict=True)
        found = {name: grad for name, grad in named if grad is not None}
        self.reached = [*found]
        return [loss.detach(), *(values[name] for name in self.written), *found.values()]

    def _join(self, forward: fx.GraphModule, backward: fx.GraphModule) -> Joint:
        """Modules that hold the state and call the graphs."""
        outputs: Any = forward.graph.output_node().args[0]
        first = 1 + len(self.written)
        # Weights stay where they are; what the forward pass writes is saved as it was.
        fixed = {
            f"primals_{place}": name
            for place, name in enumerate(self.state, start=1)
            if name not in self.written
        }
        saved = outputs[first:]
        views = {node.name: node for node in saved if _is_view(node, fixed)}
        kept = [place for place in range(first, len(outputs)) if outputs[place].name not in views]
        names = [outputs[place].name for place in kept]
        needed = [node.name for node in backward.graph.find_nodes(op="placeholder")]
        start, end = Root(self.state), Root(self.state)

        def run_forward(*given: Any) -> Any:
            leaves, current = torch_pytree.tree_leaves(given), start.values()
            own = [current[name] for name in self.state]
            results = replay(forward)(*own, *(leaves[place] for place in self.places))
            for name, value in zip(self.written, results[1:first], strict=True):
                current[name].copy_(value)
            return results[0], tuple(results[place] for place in kept)

        def run_backward(saved: Sequence[Any]) -> Any:
            current = end.values()
            given = dict(zip(names, saved, strict=True))
            weights = {place: current[name] for place, name in fixed.items()}
            given |= {name: _view(node, weights) for name, node in views.items()}
            found = replay(backward)(*(given.get(name, _ONE) for name in needed))
            grads = dict(zip(self.reached, found, strict=True))
            return {
                "parameters": {name: grads[name] for name in parameters},
                "inputs": {name: grads[name] for name in inputs},
            }

        parameters = tuple(name for name in self.reached if name in self.trained)
        inputs = tuple(name for name in self.reached if name not in self.trained)
        with torch.no_grad():
            example = torch_pytree.tree_map_only(Tensor, torch.clone, self._example(forward, kept))
        shapes = tuple(_dynamic_sizes(outputs[place].meta["val"]) for place in kept)
        one = inspect.Parameter("saved", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for module in (start, end):
            module.training = False  # the trace has the modes of the model
        return Joint(
            with_forward(start, run_forward, self.signature),
            with_forward(end, run_backward, inspect.Signature([one])),
            example,
            shapes,
            parameters,
            inputs,
        )

    def _example(self, forward: fx.GraphModule, kept: Sequence[int]) -> tuple[Any, ...]:
        """What the forward pass saves for the example."""
        leaves = torch_pytree.tree_leaves(self.args)
        state = [one.clone() for one in self.state.values()]
        results = forward(*state, *(leaves[place].detach() for place in self.places))
        return tuple(results[place] for place in kept)


_ONE = torch.ones(())


def _prepare(graph: fx.GraphModule) -> None:
    """Name placeholders as the partitioner expects them, and drop `detach`.

    The last placeholder is the gradient of the loss.
    """
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        node.replace_all_uses_with(node.all_input_nodes[0])
        graph.graph.erase_node(node)
    *primals, tangent = graph.graph.find_nodes(op="placeholder")
    for place, node in enumerate(primals, start=1):
        node.name = node.target = f"primals_{place}"
    tangent.name = tangent.target = "tangents_1"
    graph.recompile()


def _is_view(node: fx.Node, weights: Collection[str]) -> bool:
    """Whether a node is a weight, or a view of one."""
    if node.op == "placeholder":
        return node.name in weights
    is_view = isinstance(node.target, torch._ops.OpOverload) and node.target.is_view
    return is_view and all(_is_view(one, weights) for one in node.all_input_nodes)


def _view(node: fx.Node, weights: Mapping[str, Tensor]) -> Any:
    """The value of a view of a weight."""
    if node.op == "placeholder":
        return weights[node.name]
    op: Any = node.target
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda one: _view(one, weights))
    return op(*args, **kwargs)


def _leaf_names(args: tuple[Any, ...], names: Sequence[str]) -> list[str]:
    """The name of each leaf: of its argument, with keys of nested ones."""
    found = []
    for name, argument in zip(names, args, strict=True):
        paths, _ = torch_pytree.tree_flatten_with_path(argument)
        found += [name + torch_pytree.keystr(path) for path, _ in paths]
    return found


def _dynamic_sizes(value: Any) -> Any:
    if isinstance(value, Tensor):
        axes = enumerate(value.shape)
        return {axis: Dim.AUTO for axis, size in axes if not isinstance(size, int)}
    return None if isinstance(value, int) else Dim.AUTO
