"""Custom ops that mutate no argument: PyTorch kernels around a compiled one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch._library.autograd import Info, make_autograd_impl
from torch.autograd import forward_ad
from torch.utils import _pytree as torch_pytree

from turbine import errors
from turbine.capture.declared_ops import EMITTED, KEEP_OPERANDS, MEANINGS, OPERATIONS, PROGRAMS
from turbine.ops import gradients, ir_builder
from turbine.ops.declared_op import DeclaredOp, Function
from turbine.ops.launcher import OpLauncher, target_of_gpu
from turbine.ops.predicates import (
    address,
    any_requires_grad,
    is_intercepted_or_transformed,
    is_tensor,
    is_transformed,
)
from turbine.ops.repeat_call import Repeat


class PureOp(DeclaredOp):
    """An op that mutates no argument."""

    @property
    def core(self) -> PureOp:
        return self

    def _implement(self) -> None:
        name, library = self.schema.name, self.library
        self.launcher = OpLauncher(self.schema, self.op, self.static, instead=self._expand)
        # Fast paths that skip the layers below: in the autograd kernel, and before the dispatcher.
        self.repeat: Repeat | None = None
        self.direct: Repeat | None = None
        self.has_meaning = True
        self.eager: Function | None = None
        MEANINGS[self.op] = self._expand
        self.has_own_gradient = False
        self._differentiate_by(gradients.derive_backward(self.schema, self._meaning))
        self.batch = gradients.loop(self.op)
        self.takes_keyword_tensors = any(
            argument.keyword_only and argument.kind.startswith("Tensor")
            for argument in self.schema.arguments
        )
        if not self.takes_keyword_tensors:  # torch's vmap does not support them
            torch.library.register_vmap(self.schema.qualified, self._batch, lib=library)
        if "Meta" not in self.leave:
            torch.library.register_fake(self.schema.qualified, self._infer_shapes, lib=library)
        if "CPU" not in self.leave:
            library.impl(name, self._launch, "CPU")
            library.impl(name, self._run_in_pytorch, "CompositeExplicitAutograd")
        library.impl(name, self._differentiable, "Autograd", with_keyset=True)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Call the op; a repeated call skips PyTorch's dispatcher."""
        if keywords or torch.compiler.is_compiling() or is_intercepted_or_transformed():
            return self.op(*args, **keywords)
        direct = self.direct
        if direct is not None:
            result = direct.positional(args)
            if result is not None:
                return result
        results = self.op(*args)
        self.direct = self._repeat_of(args)
        return results

    def emit_by(self, emit: ir_builder.Emit) -> None:
        """Use the emission for the code, and the function as shape rule, from now on."""
        self.forget()
        self.has_meaning = False
        EMITTED[self.schema.qualified] = ir_builder.rule(self.schema, emit)
        self.launcher = OpLauncher(self.schema, self.op, self.static)
        self.gpu_launcher = OpLauncher(
            self.schema, self.op, self.static, choose_target=target_of_gpu
        )
        self.repeat = self.direct = None
        if not self.has_own_gradient:
            self._differentiate_by(Info(self._no_gradient, None))

    def register_eager(self, execute: Function) -> Function:
        self.eager = execute
        self.repeat = self.direct = None
        return execute

    def register_autograd(
        self, backward: Function, /, *, setup_context: Function | None = None
    ) -> None:
        self._differentiate_by(Info(backward, setup_context))
        self.has_own_gradient = True

    def _differentiate_by(self, info: Info) -> None:
        self.autograd = make_autograd_impl(self.op, info)
        self.transformed = gradients.under_transforms(self.op, self.schema, info)

    def remove(self) -> None:
        self.forget()
        super().remove()
        self.direct = None

    def forget(self) -> None:
        """Remove the op from the tables of compiled code."""
        EMITTED.pop(self.schema.qualified, None)
        KEEP_OPERANDS.discard(self.schema.qualified)
        OPERATIONS.pop(self.schema.qualified, None)
        PROGRAMS.pop(self.schema.qualified, None)
        MEANINGS.pop(self.op, None)

    def _meaning(self, *args: Any) -> Any:
        """The function's results, checked against the schema."""
        return self.schema.check_results(self.schema.call(self.function, args))

    def _infer_shapes(self, *args: Any, **keywords: Any) -> Any:
        """Fake results, all of them contiguous."""
        results = self._meaning(*self.schema.filled(args, keywords))
        return torch_pytree.tree_map_only(torch.Tensor, _empty_like, results)

    def _expand(self, *args: Any, **keywords: Any) -> Any:
        """Run the function in place of the op, with results laid out as in compiled code."""
        filled = self.schema.filled(args, keywords)
        inputs = [leaf for leaf in torch_pytree.tree_leaves(filled) if is_tensor(leaf)]
        results = self._meaning(*filled)
        return torch_pytree.tree_map_only(torch.Tensor, lambda t: _copy_views(t, inputs), results)

    def _launch(self, *args: Any, **keywords: Any) -> Any:
        if self.eager is None:
            return self.launcher(*args, **keywords)
        results = self._execute(self.eager, self.schema.filled(args, keywords))
        return self.launcher(*args, **keywords) if results is NotImplemented else results

    def _execute(self, eager: Function, filled: Sequence[Any]) -> Any:
        """The results of the eager function, copied if they share memory."""
        results = self.schema.call(eager, filled)
        if results is NotImplemented:
            return results
        taken = {address(t) for t in torch_pytree.tree_leaves(list(filled)) if is_tensor(t)}
        conforming = self.schema.check_results(results)
        return torch_pytree.tree_map_only(torch.Tensor, lambda t: _unshare(t, taken), conforming)

    def _run_in_pytorch(self, *args: Any, **keywords: Any) -> Any:
        """Run the function in PyTorch on other devices, or the op's emission on the GPU."""
        filled = self.schema.filled(args, keywords)
        if self.eager is not None:
            results = self._execute(self.eager, filled)
            if results is not NotImplemented:
                return results
        if self.has_meaning:
            return self._expand(*filled)
        tensors = [leaf for leaf in torch_pytree.tree_leaves(filled) if is_tensor(leaf)]
        if {tensor.device.type for tensor in tensors} == {"cuda"}:
            return self.gpu_launcher(*filled)
        devices = {str(tensor.device) for tensor in tensors}
        raise errors.CustomOpError(
            f"{self.schema.qualified} was called with tensors on {', '.join(sorted(devices))}",
            hint="its emission runs on the CPU, or on a GPU: move all tensors to one of them",
        )

    def _differentiable(self, keyset: Any, *args: Any, **keywords: Any) -> Any:
        transformed = is_transformed()
        repeat = self.repeat
        if repeat is not None and not transformed:
            result = repeat(args, keywords)
            if result is not None:
                return result
        is_derived = self.has_meaning and not self.has_own_gradient
        if is_derived and (transformed or self._needs_keywords_gradient(keywords)):
            # torch.func's transforms do not accept ops with registered gradients.
            return self._expand(*args, **keywords)
        if transformed:
            self._check_has_no_tangent([*args, *keywords.values()])
            if torch._C._functorch.maybe_current_level() is not None:
                return self.transformed(keyset, *args, **keywords)
        results = self.autograd(keyset, *args, **keywords)
        self.repeat = None if keywords else self._repeat_of(args)
        return results

    def _needs_keywords_gradient(self, keywords: dict[str, Any]) -> bool:
        """Whether a keyword tensor needs a gradient, which PyTorch does not support."""
        return self.takes_keyword_tensors and any_requires_grad(list(keywords.values()))

    def _check_has_no_tangent(self, args: Sequence[Any]) -> None:
        tensors = filter(is_tensor, torch_pytree.tree_leaves(list(args)))
        if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
            raise errors.CustomOpError(
                f"{self.schema.qualified} has no forward-mode gradient",
                hint="one is derived if the op is a function of PyTorch ops without a backward",
            )

    def _repeat_of(self, args: tuple[Any, ...]) -> Repeat | None:
        """The repeat of the launcher's last call, if it had these arguments."""
        below = self.launcher.repeat
        if below is None or self.eager is not None or torch._C._any_requires_grad(*args):
            return None
        return below.again(args)

    def _batch(self, info: Any, in_dims: Any, *args: Any, **keywords: Any) -> Any:
        return self.batch(info, in_dims, *args, **keywords)

    def _no_gradient(self, ctx: Any, *grads: Any) -> Any:
        gradients.refuse(
            errors.CustomOpError(
                f"{self.schema.qualified} has no gradient",
                hint="give it one with register_autograd",
            )
        )


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _copy_views(result: torch.Tensor, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """A result that shares no memory with the inputs, contiguous."""
    if result._is_view() or any(result is one for one in inputs):
        return result.clone(memory_format=torch.contiguous_format)
    return result.contiguous()


def _unshare(result: torch.Tensor, taken: Collection[int]) -> torch.Tensor:
    """A result in none of the taken storages, contiguous."""
    if address(result) in taken:
        return result.clone(memory_format=torch.contiguous_format)
    return result.contiguous()
