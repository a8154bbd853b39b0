"""Custom ops declared by a class: `select` describes arguments and results, `generate` emits IR."""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.utils import _pytree as torch_pytree

from turbine import errors
from turbine.compat.op_reg.building import FreeFuncKernelBuilder as FreeFuncKernelBuilder
from turbine.compat.op_reg.building import InlineKernelBuilder as InlineKernelBuilder
from turbine.compat.op_reg.building import KernelBuilder as KernelBuilder
from turbine.compat.op_reg.descriptors import ArgDescriptor as ArgDescriptor
from turbine.compat.op_reg.descriptors import AttrArg as AttrArg
from turbine.compat.op_reg.descriptors import EmptyOptionalTensorArg as EmptyOptionalTensorArg
from turbine.compat.op_reg.descriptors import IntArg as IntArg
from turbine.compat.op_reg.descriptors import TensorArg as TensorArg
from turbine.compat.op_reg.descriptors import TensorListArg as TensorListArg
from turbine.compat.op_reg.selection import KernelSelection as KernelSelection
from turbine.ops import Builder, custom_op
from turbine.ops.schema import Schema
from turbine.ops.specialization import Axes

# Ops by their names, "namespace.name".
ALL_CUSTOM_OP_REGS: dict[str, CustomOp] = {}
_UNIQUE = "@UNIQUE@"
_counters: dict[tuple[str, str], itertools.count[int]] = defaultdict(lambda: itertools.count(1))


def def_library(ns: str) -> torch.library.Library:
    """A library for ops of a namespace."""
    # Other modules, and PyTorch itself, may have ops in the namespace too.
    return torch.library.Library(ns, "FRAGMENT")


TURBINE_LIBRARY = def_library("turbine")


class CustomOp(ABC):
    """A custom op: a subclass defines `signature`, `select` and `generate`.

    >>> import torch
    >>> from iree.compiler.dialects import arith
    >>> from turbine.compat.op_reg import CustomOp, def_library
    >>> @CustomOp.register(library=def_library("docs_op_reg"))
    ... class add(CustomOp):
    ...     signature = "add(Tensor a, Tensor b) -> Tensor"
    ...     def select(self, ksel):
    ...         a, _ = ksel.arg_tensor(0), ksel.arg_tensor(1)
    ...         ksel.return_tensor(a.t)
    ...     def generate(self, ksel, kb):
    ...         kb.yield_results(arith.addf(*kb.arg_bindings))
    >>> add(torch.ones(2), torch.ones(2))
    tensor([2., 2.])
    """

    single_dispatch: bool = False  # no effect: IREE forms dispatches itself

    @property
    @abstractmethod
    def signature(self) -> str:
        """The schema without its namespace; @UNIQUE@ in the name becomes a number."""

    @abstractmethod
    def select(self, ksel: KernelSelection) -> None:
        """Request every argument, and declare the results."""

    @abstractmethod
    def generate(self, ksel: KernelSelection, kb: KernelBuilder) -> None:
        """Emit the op's IR, and yield its results."""

    def eager_execute(self, *args: Any) -> Any:
        """Run a call in PyTorch; return NotImplemented to run compiled code."""
        return NotImplemented

    @staticmethod
    def register(
        op_class: type[CustomOp] | None = None,
        *,
        library: torch.library.Library | str = TURBINE_LIBRARY,
        dispatch_key: str | Sequence[str] | None = None,
        register_meta: bool = True,
        register_impl: bool = True,
    ) -> Callable[..., Any]:
        """A class decorator that declares the op, and returns it in place of the class.

        Args:
            op_class: the class, if the decorator is used without arguments.
            library: the library or namespace of the op.
            dispatch_key: register compiled code only if "CPU" is among these keys.
            register_meta: False if the caller registers the shape function.
            register_impl: False if the caller registers a kernel for CPU tensors.
        """
        keys = (dispatch_key,) if isinstance(dispatch_key, str) else dispatch_key
        has_kernel = register_impl and (keys is None or "CPU" in keys)
        leave = [key for key, own in (("Meta", register_meta), ("CPU", has_kernel)) if not own]
        namespace = library if isinstance(library, str) else library.ns
        declare = partial(_declare, namespace, leave)
        return declare if op_class is None else declare(op_class)

    def __init__(self, namespace: str, leave: Sequence[str]) -> None:
        declare = custom_op(_schema(namespace, self.signature), static=self._static, leave=leave)
        self.declared = declare(self._shapes)
        self.declared.register_emission(self._emit)
        if type(self).eager_execute is not CustomOp.eager_execute:
            self.declared.register_eager(self.eager_execute)
        self.op = self.declared.op.overloadpacket

    @property
    def schema(self) -> Schema:
        """The op's arguments and results."""
        return self.declared.schema

    @property
    def name(self) -> str:
        """The name without the namespace."""
        return self.schema.name

    @property
    def qualified(self) -> str:
        """namespace.name"""
        return self.schema.dotted

    def make_selection(self, args: Sequence[Any]) -> KernelSelection:
        """The descriptors that `select` makes for these arguments."""
        ksel = KernelSelection(self, args)
        with detect_fake_mode(list(args)) or nullcontext():
            self.select(ksel)
        ksel.check()
        return ksel

    def _static(self, args: Sequence[Any]) -> Mapping[str, Axes]:
        meta = torch_pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), list(args))
        return self.make_selection(meta).static()

    def _shapes(self, *args: Any, **keywords: Any) -> Any:
        filled = self.schema.filled(args, keywords)
        tensors = [t for t in torch_pytree.tree_leaves(filled) if isinstance(t, torch.Tensor)]
        device = tensors[0].device if tensors else torch.device("cpu")
        return self.make_selection(filled).results(device)

    def _emit(self, builder: Builder, *args: Any, **keywords: Any) -> Any:
        ksel = self.make_selection(builder.examples)
        kb = InlineKernelBuilder(ksel, builder.module, self.schema.filled(args, keywords))
        self.generate(ksel, kb)
        return kb.require_results()


def _declare(namespace: str, leave: Sequence[str], op_class: type[CustomOp]) -> Any:
    instance = op_class(namespace, leave)
    ALL_CUSTOM_OP_REGS[instance.qualified] = instance
    return instance.op


def _schema(namespace: str, signature: str) -> str:
    """The signature with its namespace; an int becomes a SymInt, as `arg_int` may be dynamic."""
    found = re.fullmatch(r"\s*([\w@]+)\s*(\(.*)", signature, re.DOTALL)
    if found is None:
        raise errors.CustomOpError(
            f"the signature {signature!r} does not begin with a name",
            hint='write it as "name(Tensor x, int axis) -> Tensor"',
        )
    name, rest = found.groups()
    if _UNIQUE in name:
        name = name.replace(_UNIQUE, str(next(_counters[namespace, name])))
    taken, arrow, given = rest.rpartition("->")
    return f"{namespace}::{name}{re.sub(_INT_ARGUMENT, 'SymInt', taken)}{arrow}{given}"


_INT_ARGUMENT = r"(?<=[(,\s])int(?=\s+\w)"
