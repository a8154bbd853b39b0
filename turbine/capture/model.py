"""Capture a PyTorch model: a module and example arguments in, a functional fx program out."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.utils import _pytree as torch_pytree

from turbine import errors
from turbine.capture import convolutions, dim_names, passes, random_state, small_sizes
from turbine.capture.argument_checks import check_dense
from turbine.capture.control_flow import all_bodies
from turbine.capture.declared_ops import Expanding
from turbine.capture.decompositions import current_aot_decompositions
from turbine.capture.effect_tokens import drop_tokens
from turbine.capture.export_errors import export_error
from turbine.capture.export_noise import FAKE_TENSORS, KINDS_OF_ERRORS, mute_log, quiet_failures
from turbine.capture.graph_checks import (
    check_graph,
    check_layouts,
    check_overlap,
    check_strides,
)
from turbine.capture.one_thread import traces
from turbine.capture.program import Devices, Program, check_devices
from turbine.capture.program_check import agrees, can_compare
from turbine.capture.program_reader import name_parameters, read_program
from turbine.capture.random_ops import Stream
from turbine.capture.recurrence import Recurrences
from turbine.capture.training_mode import warn_of_training_mode
from turbine.signature import Signature


@traces
def capture(
    model: torch.nn.Module | ExportedProgram,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    strict: bool = False,
    arg_device: Devices | None = None,
    least_sizes: bool = True,
    stream: Stream | None = None,
    seed: int = 0,
) -> Program:
    """Export, decompose and simplify a model.

    `arg_device` maps arguments to devices. Without `least_sizes`, the minimum sizes that PyTorch
    assumes are ignored, and the smallest sizes for which the program is valid are found from 0 on.
    Random ops draw numbers from `stream`, whose state is part of the program.
    """
    if isinstance(model, ExportedProgram):
        exported = model
    else:
        exported = export_program(model, args, kwargs or {}, dynamic_shapes, strict)
        warn_of_training_mode(model, exported)
    for graph in (exported.graph, *(body.graph for body in all_bodies(exported.graph_module))):
        check_layouts(graph)
    check_strides(exported.graph)
    decomposed = _decompose(exported)
    general = _trace(exported, decomposed)
    if stream is not None:
        random_state.count_random(decomposed, stream, seed, current_aot_decompositions())
    passes.clean(decomposed.graph_module)
    for module in (decomposed.graph_module, *all_bodies(decomposed.graph_module)):
        check_graph(module.graph)
        check_overlap(module.graph)
    program = read_program(decomposed, name_parameters(model, exported))
    passes.prepare(program.graph, program.inputs)

    is_open = small_sizes.has_default_ranges(dynamic_shapes)
    sizes = _SmallSizes(model, exported, general, program, strict)
    signature = sizes.find_valid_sizes(is_open, least_sizes)
    named = (
        dim_names.with_traced_names(signature, exported)
        if isinstance(model, ExportedProgram)
        else dim_names.with_user_names(signature, dynamic_shapes)
    )
    devices = check_devices(arg_device, len(program.inputs))
    return replace(program, signature=named, devices=devices)


@dataclass(frozen=True)
class _SmallSizes:
    """Checks whether the program is valid for small sizes, which PyTorch excludes from a trace."""

    model: torch.nn.Module | ExportedProgram
    exported: ExportedProgram
    general: small_sizes.Trace
    program: Program
    strict: bool

    def find_valid_sizes(self, is_open: bool, least_sizes: bool) -> Signature:
        """The signature with the sizes for which the program is valid."""
        signature = self.program.signature
        if signature.conditions or (is_open and least_sizes):
            signature = small_sizes.relax(self.general, signature, is_open, self._retrace)
        if not least_sizes:
            signature = small_sizes.drop_default_minimums(signature)
        if not is_open or not least_sizes:
            signature = small_sizes.raise_minimums(signature, self._is_valid)
        return signature

    def _is_valid(self, sizes: small_sizes.Sizes) -> bool:
        """Compare results with the model if possible, else compare with a new trace."""
        program, model = self.program, self.model
        if isinstance(model, ExportedProgram) or not can_compare(program):
            return small_sizes.is_same(self.general, program.signature, sizes, self._retrace)
        examples = torch_pytree.tree_leaves(self.exported.example_inputs)
        leaves = small_sizes.resize_examples(program.signature, examples, sizes)
        with small_sizes.suppress_warnings():
            return agrees(program, model, leaves, *self._arguments(leaves))

    def _retrace(self, leaves: Sequence[Any]) -> small_sizes.Trace:
        model = self.model
        module = model.module() if isinstance(model, ExportedProgram) else model
        args, kwargs = self._arguments(leaves)
        special = export_program(module, args, kwargs, None, self.strict)
        return _trace(special, _decompose(special))

    def _arguments(self, leaves: Sequence[Any]) -> Any:
        return torch_pytree.tree_unflatten(leaves, self.exported.call_spec.in_spec)


def _trace(exported: ExportedProgram, decomposed: ExportedProgram) -> small_sizes.Trace:
    """A trace with a copy of the decomposed graph, which passes change later."""
    held = {**decomposed.constants, **decomposed.state_dict}
    specs = decomposed.graph_signature.input_specs
    weights = {spec.arg.name: held.get(spec.target) for spec in specs if spec.target is not None}
    graph = fx.GraphModule(decomposed.graph_module, copy.deepcopy(decomposed.graph))
    return small_sizes.Trace(exported.graph, graph, weights)


@traces
def export_program(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    strict: bool,
    name: str | None = None,
) -> ExportedProgram:
    """Export a model with PyTorch; errors name its class, or `name`.

    A model that cannot be run on fake tensors is traced by Dynamo, which `strict` asks for.
    """
    if not isinstance(model, torch.nn.Module):
        raise errors.ExportError(
            f"cannot export a {type(model).__name__}",
            hint="pass an nn.Module or a torch.export.ExportedProgram",
        )
    if not isinstance(args, tuple):
        raise errors.ExportError(
            f"args is a {type(args).__name__}, expected a tuple", hint="write args=(x,)"
        )
    check_dense(model, args, kwargs)
    args, kwargs = _unalias((args, kwargs))
    try:
        return _export(model, args, kwargs, dynamic_shapes, strict)
    except Exception as error:
        if not strict:
            with suppress(Exception):
                return _export(model, args, kwargs, dynamic_shapes, strict=True)
        raise export_error(name or type(model).__name__, error) from error


def _export(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    strict: bool,
) -> ExportedProgram:
    # Errors have the contents of the log.
    muted = mute_log(FAKE_TENSORS, KINDS_OF_ERRORS)
    with Expanding(), Recurrences(trains=False), muted, quiet_failures():
        return torch.export.export(
            model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=strict
        )


def _unalias(arguments: Any) -> Any:
    """The arguments, with copies in place of repeated tensors, and of views of others.

    torch.export makes one input of a tensor that is passed twice, and the program then ignores the
    second argument. It fails where a view comes before the tensor that it shows.
    """
    leaves = torch_pytree.tree_leaves(arguments)
    given = {id(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
    seen: set[int] = set()

    def copy_alias(leaf: Any) -> Any:
        is_alias = isinstance(leaf, torch.Tensor) and (id(leaf) in seen or id(leaf._base) in given)
        if not is_alias:
            seen.add(id(leaf))
            return leaf
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)

    return torch_pytree.tree_map(copy_alias, arguments)


def _decompose(exported: ExportedProgram) -> ExportedProgram:
    try:
        with warnings.catch_warnings():
            # torch 2.13 uses a class that it deprecated.
            warnings.filterwarnings("ignore", ".*LeafSpec.*", FutureWarning)
            table = current_aot_decompositions()
            kept = random_state.keep_whole(convolutions.keep_whole(table))
            decomposed: ExportedProgram = exported.run_decompositions(kept)
            drop_tokens(decomposed)
            for module in decomposed.graph_module.modules():
                if isinstance(module, fx.GraphModule):
                    convolutions.expand(module, table)
            return decomposed
    except Exception as error:
        raise errors.ExportError(
            f"decomposing the graph failed: {type(error).__name__}: {str(error).strip()}",
            hint="a decomposition given to extend_aot_decompositions may be at fault",
        ) from error
