"""Gradients, vmap and torch.func transforms of custom ops."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from tests.declared import ADD, X, Y, add_op, declare, write
from tests.declared import leave_no_ops as leave_no_ops
from turbine import errors

programs = pytest.mark.sweep(1, "programs")


@programs
def test_second_derivatives_are_supported() -> None:
    op = declare("f(Tensor x, Tensor[] ys, float a) -> (Tensor, Tensor)", _two)
    x, y = X.double().requires_grad_(), Y.double().requires_grad_()

    def used(x: Tensor, y: Tensor) -> Any:
        return op.op(x, [y, x.detach()], 2.0)

    assert torch.autograd.gradcheck(used, (x, y))
    assert torch.autograd.gradgradcheck(used, (x, y))


def _two(x: Tensor, ys: list[Tensor], a: float) -> tuple[Tensor, Tensor]:
    return x.sin() * ys[0] * a, (ys[0] > 2.5).to(torch.int32)


@programs
def test_gradients_under_torch_compile_match_eager() -> None:
    op = declare("f(Tensor x, Tensor y) -> Tensor", lambda x, y: (x * y).exp())
    grads = []
    for function in (op.op, torch.compile(op.op, backend="turbine", fullgraph=True)):
        x = X.clone().requires_grad_()
        function(x, Y).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[0], grads[1])
    torch.testing.assert_close(grads[0], Y * (X * Y).exp())


def test_a_custom_backward_is_used() -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: x * 2)
    op.register_autograd(
        lambda ctx, grad: grad * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    x = X.clone().requires_grad_()
    op(x).sum().backward()
    torch.testing.assert_close(x.grad, X)


@programs
def test_vmap_uses_a_loop_or_a_custom_rule() -> None:
    op = declare("f(Tensor x, Tensor y, float a=2.0) -> Tensor", lambda x, y, a: (x * y).sum() * a)
    torch.testing.assert_close(torch.vmap(op.op)(X, Y), (X * Y).sum(1) * 2)
    torch.testing.assert_close(
        torch.vmap(op.op, (1, None))(X, X[:, 0]), (X.t() * X[:, 0]).sum(1) * 2
    )
    op.register_vmap(lambda info, dims, x, y, a=2.0: (torch.full((info.batch_size,), 5.0), 0))
    assert torch.vmap(op.op)(X, Y).tolist() == [5.0] * 3


def test_torch_func_transforms_are_supported() -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: (x**3).sum())
    found = torch.func.vmap(torch.func.grad(op.op))(X)
    torch.testing.assert_close(found, 3 * X**2)


@programs
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyTorch's own
def test_forward_mode_works_for_functions_and_is_rejected_for_emissions() -> None:
    op = declare("f(Tensor x, Tensor y) -> Tensor", lambda x, y: x * y)
    add = add_op()
    add.register_template(ADD)
    for called in (op, op, add, add):  # remembered
        called(X, Y)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, torch.ones_like(X))
        for call in (op, op.op):
            torch.testing.assert_close(forward_ad.unpack_dual(call(dual, Y)).tangent, Y)
        with pytest.raises(errors.CustomOpError, match="no forward-mode gradient"):
            add(dual, Y)
        torch.testing.assert_close(add(X, Y), X + Y)


@programs
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyTorch's own
def test_a_custom_backward_is_used_by_torch_func() -> None:
    op = declare("f(Tensor x, Tensor[] ys, float a) -> Tensor", lambda x, ys, a: x * ys[0] * a)
    op.register_autograd(
        lambda ctx, grad: (grad * 10 * ctx.saved_tensors[0], [None], None),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1][0]),
    )
    for call in (op, op.op):
        used = partial(_summed, call)
        torch.testing.assert_close(torch.func.grad(used)(X, Y), 10 * Y)
        torch.testing.assert_close(torch.vmap(torch.func.grad(used))(X, Y), 10 * Y)
    with pytest.raises(errors.CustomOpError, match="no forward-mode gradient"):
        torch.func.jvp(lambda x: _summed(op, x, Y), (X,), (X,))


def _summed(call: Any, x: Tensor, y: Tensor) -> Tensor:
    total: Tensor = call(x, [y], 3.0).sum()
    return total


@programs
def test_vmap_over_an_empty_batch_and_over_a_mutating_op() -> None:
    op = declare("f(Tensor x, Tensor y) -> Tensor", lambda x, y: x.sum() * y)
    assert torch.vmap(op, in_dims=(0, None))(X[:0], Y).shape == (0, 3, 4)
    written = declare("g(Tensor(a!) x, Tensor y) -> Tensor", write)
    x = X.clone()
    torch.testing.assert_close(torch.vmap(written)(x, Y), (X + Y) * 2)
    torch.testing.assert_close(x, X + Y)


@programs
def test_gradients_flow_through_mutations() -> None:
    op = declare("f(Tensor(a!) x, Tensor y) -> Tensor", write)
    x, y = torch.zeros(3, 4), Y.clone().requires_grad_()
    op(x, y)
    x.square().sum().backward()
    torch.testing.assert_close(y.grad, 2 * Y)


@programs
def test_keyword_only_tensors_have_gradients() -> None:
    op = declare("f(Tensor x, *, Tensor y) -> Tensor", lambda x, *, y: x * y)
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    torch.testing.assert_close(op(X, y=Y), X * Y)
    op(x, y=y).sum().backward()
    torch.testing.assert_close((x.grad, y.grad), (Y, X))
    out = declare("g(Tensor x, *, Tensor(a!) out) -> ()", lambda x, *, out: out.copy_(x * 2))
    given = torch.empty(3, 4)
    out(X, out=given)
    torch.testing.assert_close(given, X * 2)


def test_a_call_that_needs_gradients_after_one_that_does_not() -> None:
    op = declare("f(Tensor x) -> Tensor", lambda x: x * 2)
    for _ in range(3):
        assert not op(X).requires_grad
        assert not op.op(X).requires_grad
    assert op(X.clone().requires_grad_()).requires_grad
    assert op.op(X.clone().requires_grad_()).requires_grad
