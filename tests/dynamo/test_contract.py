"""Compiled functions match eager: values, strides, aliases, mutations and gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as torch_pytree

from tests.compiled import Make, agrees, compiled, outcome, same
from turbine.dynamo import entry, records
from turbine.dynamo.graphs import compile_graph
from turbine.dynamo.library import LibraryCalls
from turbine.dynamo.part_code import Weights
from turbine.runtime.tensor_call import TensorCall

pytestmark = [
    # Dynamo asks tensors that are not leaves for their gradients,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    # and tells of autograd functions that it makes itself.
    pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated"),
]

cases = pytest.mark.sweep(3, "cases")


def grad(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A leaf that wants its gradient."""
    return torch.randn(sizes, dtype=dtype).requires_grad_()


def plain(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(sizes, dtype=dtype)


def halves(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Two overlapping views of one tensor."""
    return tensor[:3], tensor[1:]


MUTATIONS: dict[str, tuple[Any, Make]] = {
    "data": (lambda x: x.mul_(2) + 1, lambda: (plain(3, 4),)),
    "data of a non-leaf": (lambda x: x.mul_(2) * 3, lambda: (grad(3, 4) * 1,)),
    "under no_grad": (lambda x: _set_quietly(x), lambda: (grad(3, 4),)),
    "metadata": (lambda x: x.t_() + 1, lambda: (plain(3, 4),)),
    "metadata of a non-leaf": (lambda x: x.transpose_(0, 1) * 2, lambda: (grad(3, 4) * 1,)),
    "data and metadata": (lambda x: x.t_().mul_(2) + 1, lambda: (plain(3, 4),)),
    "one of two": (lambda x, y: (x.add_(y), y * 2), lambda: (plain(3), grad(3))),
    "both halves of one tensor": (lambda x, y: x.mul_(2) + y, lambda: halves(plain(4))),
    "halves of one non-leaf": (lambda x, y: x.mul_(2) + y, lambda: halves(grad(4) * 1)),
    "a view of an input": (lambda x: x[1].add_(5), lambda: (plain(3, 4),)),
    "copy_ from another": (lambda x, y: (x.copy_(y * 2), None)[1], lambda: (plain(3), plain(3))),
    "after it was read": (lambda x: (x * 2, x.add_(1), x * 3), lambda: (plain(5),)),
}


def _set_quietly(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.mul_(2)
    return x * 3


@pytest.mark.sweep(2)
@pytest.mark.parametrize("case", MUTATIONS)
def test_input_mutations_match_eager(case: str) -> None:
    agrees(*MUTATIONS[case], ops=0)


ALIASES: dict[str, tuple[Any, Make]] = {
    "an input": (lambda x: (x, x + 1), lambda: (plain(3),)),
    "an input that needs a gradient": (lambda x: (x, x * 2), lambda: (grad(3),)),
    "a view of an input": (lambda x: (x.t(), x * 2), lambda: (grad(3, 4),)),
    "a view of a result": (lambda x: (y := x * 2, y.view(-1)), lambda: (grad(3, 4),)),
    "two views of an intermediate": (
        lambda x: ((y := x * 2)[0], y[1:].t()),
        lambda: (grad(3, 4),),
    ),
    "an expanded result": (lambda x: (x * 2).expand(3, 4), lambda: (grad(4),)),
    "a slice of an intermediate": (lambda x: (x * 2)[:, 1:3], lambda: (grad(3, 4),)),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("case", ALIASES)
def test_result_aliases_match_eager(case: str) -> None:
    agrees(*ALIASES[case])


@cases
@pytest.mark.parametrize("case", ["an input", "a view of an input", "a view of a result"])
def test_aliased_results_can_be_written(case: str) -> None:
    def write(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(x: Tensor) -> Any:
            results = function(x)
            with torch.no_grad():
                results[0].mul_(10)
            return results

        return call

    function, _ = ALIASES[case]
    make = lambda: (plain(3, 4) if case == "a view of a result" else plain(3, 3),)  # noqa: E731
    same(outcome(write(compiled(function)), make), outcome(write(function), make))


@cases
def test_results_decomposed_to_views_can_be_written() -> None:
    def call(function: Any, x: Tensor) -> Tensor:
        result: Tensor = function(x)
        return result.mul_(3)

    def rolled(x: Tensor) -> Tensor:
        return (x * 2).roll(1)

    roll = compiled(rolled)
    make = lambda: (grad(3, 4),)  # noqa: E731
    same(
        outcome(lambda x: call(roll, x), make),
        outcome(lambda x: call(rolled, x), make),
    )


LAYOUTS: dict[str, tuple[Any, Make]] = {
    "a transposed input": (lambda x: x * 2, lambda: (grad(3, 4).t(),)),
    "a strided input": (lambda x: x * 2 + 1, lambda: (plain(4, 6)[:, ::2],)),
    "an expanded input": (lambda x: x * 2, lambda: (plain(4).expand(3, 4),)),
    "channels last": (
        lambda x: x * 2,
        lambda: (plain(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_(),),
    ),
    "channels last with one channel": (
        lambda x: x + 1,
        lambda: (plain(2, 1, 4, 5).to(memory_format=torch.channels_last),),
    ),
    "channels last, reduced": (
        lambda x: x.sum(dim=(2, 3), keepdim=True),
        lambda: (plain(2, 3, 4, 5).to(memory_format=torch.channels_last),),
    ),
    "made channels last": (
        lambda x: (x * 2).contiguous(memory_format=torch.channels_last),
        lambda: (grad(2, 3, 4, 5),),
    ),
    "two layouts together": (lambda x, y: x + y, lambda: (plain(3, 4), plain(4, 3).t())),
    "a permuted matrix product": (
        lambda x, y: torch.matmul(x.transpose(1, 2), y),
        lambda: (grad(2, 3, 4), grad(2, 3, 5)),
    ),
    "an unfolded input": (lambda x: x.unfold(0, 3, 1) * 2, lambda: (plain(6),)),
    "a flipped, strided input": (lambda x: x.flip(0) * 2, lambda: (plain(6, 4)[:, 1:3],)),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("case", LAYOUTS)
def test_layouts_match_eager(case: str) -> None:
    agrees(*LAYOUTS[case])


class TwiceUsed(torch.nn.Module):
    """One parameter in two places, one that is never used, one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = torch.nn.Parameter(torch.randn(3, 3))
        self.unused = torch.nn.Parameter(torch.randn(3))
        self.frozen = torch.nn.Parameter(torch.randn(3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.twice + self.frozen) @ self.twice.t()


GRADIENTS: dict[str, tuple[Any, Make]] = {
    "an input that needs none": (lambda x, y: x * y, lambda: (grad(3), plain(3))),
    "of the second input only": (lambda x, y, z: x * y + z, lambda: (plain(3), grad(3), plain(3))),
    "an unused input": (lambda x, y: x * 2, lambda: (grad(3), grad(3))),
    "the same input twice": (lambda x, y: x * y, lambda: (grad(3),) * 2),
    "a parameter in two places": (TwiceUsed(), lambda: (grad(2, 3),)),
    "a result that needs none": (lambda x: (x * 2, x > 0), lambda: (grad(3),)),
    "a result detached inside": (lambda x: (x * 2, x.detach() * 3), lambda: (grad(3),)),
    "integers beside floats": (lambda x, i: x[i] * 2, lambda: (grad(4), torch.tensor([2, 0, 2]))),
    "results int and None": (lambda x: (x * 2, 3, None, x.shape[0], "a"), lambda: (grad(3),)),
    "nested arguments": (
        lambda d: {"sum": d["a"] + d["b"][0]},
        lambda: ({"a": grad(3), "b": [plain(3)]},),
    ),
    "a dimensionless result": (lambda x: (x * x).sum(), lambda: (grad(3),)),
    "a dimensionless input": (lambda x, y: x * y, lambda: (grad(), grad(3))),
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("case", GRADIENTS)
def test_gradients_match_eager(case: str) -> None:
    agrees(*GRADIENTS[case])


DTYPES = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8]
DTYPES += [torch.uint8, torch.bool, torch.complex64]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_match_eager(dtype: torch.dtype) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.where(x == y, x, y * y), x.to(
            torch.float32 if dtype.is_floating_point else dtype
        )

    def make() -> tuple[Tensor, Tensor]:
        x = (torch.randn(2, 5) * 3).to(dtype)
        return x, x.roll(1).contiguous()

    agrees(function, make, ops=0 if dtype.is_complex else 2)


def test_empty_tensors_match_eager() -> None:
    agrees(lambda x: x * 2 + 1, lambda: (grad(0, 3),), ops=0)


def test_functions_may_return_no_tensors() -> None:
    agrees(lambda x: (x.shape[0], None, "name", 2.5), lambda: (plain(3),), ops=0)


def test_no_grad_matches_eager() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            y = x * 2
        return y, x * 2

    agrees(function, lambda: (grad(3),))
    with torch.no_grad():
        agrees(function, lambda: (grad(3),))


def test_inference_mode_matches_eager() -> None:
    with torch.inference_mode():
        agrees(lambda x: (x * 2, (x * 2).t()), lambda: (plain(3, 4),))


def test_inference_tensors_are_accepted_outside_of_inference_mode() -> None:
    with torch.inference_mode():
        x = plain(3)
    agrees(lambda x: x * 2, lambda: (x,))


@cases
def test_autocast_matches_eager() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

    def function(x: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x)

    agrees(function, lambda: (grad(2, 4),), tolerance=1e-2)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # the same code from the cache
        agrees(model, lambda: (grad(2, 4),), tolerance=1e-2)


class Doubled(torch.autograd.Function):
    """A gradient other than the derivative, to detect which is used."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 7


@cases
def test_custom_autograd_functions_match_eager() -> None:
    apply: Any = Doubled.apply
    agrees(lambda x: apply(x) * 2, lambda: (grad(3),))


@cases
def test_higher_derivatives_are_rejected_by_pytorch() -> None:
    x = grad(3)
    (first,) = torch.autograd.grad(compiled(lambda x: x * x * x)(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(first.sum(), x)


def test_hooks_on_parameters_and_results_run() -> None:
    seen: list[Tensor] = []
    x = grad(3)
    x.register_hook(seen.append)
    result = compiled(lambda x: x * 2)(x)
    result.register_hook(lambda gradient: gradient * 3)
    result.sum().backward()
    assert torch.equal(seen[0], torch.full((3,), 6.0))


def test_gradients_accumulate_over_calls() -> None:
    x = grad(3)
    double = compiled(lambda x: x * 2)
    double(x).sum().backward()
    double(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((3,), 4.0))


def test_retained_graphs_support_two_backward_passes() -> None:
    x = grad(3)
    result = compiled(lambda x: (x * x).sum())(x)
    result.backward(retain_graph=True)
    result.backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 4 * x.detach())


@torch.library.custom_op("turbine_tests::shifted", mutates_args=())
def shifted(x: Tensor) -> Tensor:
    return x + 100


@shifted.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("turbine_tests::shift", mutates_args={"x"})
def shift(x: Tensor) -> None:
    x += 100


@cases
def test_foreign_custom_ops_fall_back() -> None:
    (graph,) = agrees(lambda x: shifted(x * 2 * x + 1) * 2 * x + 1, lambda: (plain(3),), ops=6)
    assert [op.op for op in graph.left] == ["turbine_tests.shifted.default"]


def test_mutating_custom_ops_match_eager() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        before = x * 2
        y = x * 3
        shift(y)
        shift(x)
        return before, y + x

    agrees(function, lambda: (plain(3),), ops=0)


def test_effects_happen_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    def function(x: Tensor) -> Tensor:
        torch.ops.aten._print("before")
        y = x * 2 * x + 1
        torch.ops.aten._print("between")
        z = y * 2 * y + 1
        torch.ops.aten._print("after")
        return z

    agrees(function, lambda: (plain(3),))
    assert capfd.readouterr().out.split() == ["before", "between", "after"] * 2


@cases
def test_factory_functions_match_eager() -> None:
    agrees(lambda x: (x * torch.tensor(3.0), torch.tensor([1, 2])), lambda: (grad(3),))


@cases
def test_checkpointed_functions_match_eager() -> None:
    def function(x: Tensor) -> Tensor:
        inner = torch.utils.checkpoint.checkpoint(
            lambda x: torch.relu(x * 2) * x, x, use_reentrant=False
        )
        assert isinstance(inner, Tensor)
        return inner * 2

    agrees(function, lambda: (grad(3),))


INDEX = torch.tensor([1, 0, 2])
# In these the compiler works in the memory of its operand.
OVERWRITING: dict[str, Any] = {
    "scatter": lambda x: x.scatter(0, INDEX.view(3, 1), 5.0),
    "index_put": lambda x: x.t().index_put((INDEX,), torch.ones(3, 4), accumulate=True),
    "index_add": lambda x: x.view(4, 4).index_add(0, INDEX, torch.ones(3, 4)),
    "sort": lambda x: x.sort(),
    "topk": lambda x: x.topk(2),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("case", OVERWRITING)
def test_read_only_arguments_are_not_changed(case: str) -> None:
    agrees(OVERWRITING[case], lambda: (plain(4, 4),), ops=0)


NAN, INFINITY = float("nan"), float("inf")
SPECIAL = torch.tensor([[3.0, NAN, 2, 0.0, -0.0], [INFINITY, 1, 1, NAN, -INFINITY]])
UNSIGNED = torch.tensor([249, 7, 128, 0, 130], dtype=torch.uint8)
# What the compiler is known to get wrong runs in PyTorch.
WRONG: dict[str, tuple[Any, Tensor]] = {
    "index of a nan": (lambda x: (x.max(1), x.min(1), x.argmax(1)), SPECIAL),
    "order of a nan": (lambda x: (x.sort(stable=True), x.topk(1)), SPECIAL),
    "equal to itself": (lambda x: (x == x, x != x, x.isfinite(), x.isnan()), SPECIAL),
    "zero to a negative power": (lambda x: (x**-1, x**-2, x**-0.5), SPECIAL),
    "division of infinities": (lambda x: (x // 2, torch.remainder(x, 2)), SPECIAL),
    "unsigned division": (lambda x: (x // 3, x % 5, x.abs(), x.sum(), x.max()), UNSIGNED),
    "unsigned comparison": (lambda x: (x > 5, x.float(), x.sort()), UNSIGNED),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("case", WRONG)
def test_special_values_match_eager(case: str) -> None:
    function, x = WRONG[case]
    agrees(function, lambda: (x,), ops=0)


class Pair(torch.Tensor):
    """Two tensors that pass for one: every op is done to both."""

    first: Tensor
    second: Tensor

    @staticmethod
    def __new__(cls, first: Tensor, second: Tensor) -> Pair:
        made = torch.Tensor._make_wrapper_subclass(
            cls, first.shape, dtype=first.dtype, requires_grad=first.requires_grad
        )
        assert isinstance(made, Pair)
        made.first, made.second = first, second
        return made

    def __init__(self, first: Tensor, second: Tensor) -> None:
        super().__init__()

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["first", "second"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> Pair:
        return Pair(inner["first"], inner["second"])

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return "Pair"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        def side(name: str) -> Any:
            pick = lambda t: getattr(t, name) if isinstance(t, Pair) else t  # noqa: E731
            chosen, named = torch_pytree.tree_map(pick, (args, kwargs or {}))
            return op(*chosen, **named)

        return torch_pytree.tree_map(Pair, side("first"), side("second"))


def test_wrapper_tensor_subclasses_match_eager() -> None:
    def function(x: Any) -> Any:
        return x * 2 + 1

    pair = Pair(plain(3), plain(3))
    found, expected = compiled(function)(pair), function(pair)
    assert isinstance(found, Pair)
    same([found.first, found.second], [expected.first, expected.second])


CHANGES: dict[str, Callable[[torch.nn.Linear], Any]] = {
    "in place": lambda m: m.weight.data.mul_(2),
    "copied into": lambda m: m.weight.data.copy_(torch.ones(3, 3)),
    "from a state dict": lambda m: m.load_state_dict(torch.nn.Linear(3, 3).state_dict()),
    "other data": lambda m: setattr(m.weight, "data", torch.full((3, 3), 5.0)),
    "strided data": lambda m: setattr(m.weight, "data", torch.rand(6, 3)[::2]),
    "strided data in place": lambda m: m.weight.data.mul_(2),
    "data off alignment": lambda m: setattr(m.weight, "data", torch.rand(10)[1:].view(3, 3)),
    "another parameter": lambda m: setattr(m, "weight", torch.nn.Parameter(torch.rand(3, 3))),
}


@cases
def test_weight_updates_are_visible_to_the_next_call() -> None:
    model = torch.nn.Linear(3, 3).requires_grad_(False)
    call = compiled(model)
    x = plain(2, 3)
    same(call(x), model(x))
    for change in CHANGES.values():
        change(model)
        same(call(x), model(x))


def test_views_of_weights_are_cached() -> None:
    model = torch.nn.Linear(3, 3).requires_grad_(False)
    with records.collect() as heard:
        call = compiled(model)
        call(plain(2, 3))
    (part,) = (part for graph in heard for part in graph.parts)
    tensor_call = part.wait()
    assert isinstance(tensor_call, TensorCall)
    before = {index: known[1] for index, known in tensor_call.known.items()}
    call(plain(2, 3))
    assert len(before) == 2
    assert all(tensor_call.known[index][1] is view for index, view in before.items())


@cases
def test_backward_frees_saved_tensors() -> None:
    function = compiled(lambda x: torch.relu(x * 2) * x)
    x = grad(4)
    result = function(x)
    result.sum().backward()
    held = [weakref.ref(x), weakref.ref(result)]
    del x, result
    # At once, not when the garbage collector comes by.
    assert [reference() for reference in held] == [None, None]


def test_a_boxed_call_empties_its_list_and_frees_arguments_after_their_last_use() -> None:
    alive: list[bool] = []
    watched: list[weakref.ref[Tensor]] = []

    def function(x: Tensor, y: Tensor) -> tuple[Tensor]:
        middle = watch(torch.relu(x * 2) * x)
        return (torch.relu(middle * 2) * y,)

    @torch.library.custom_op("turbine_tests::watch", mutates_args=())
    def watch(x: Tensor) -> Tensor:
        alive.append(watched[0]() is not None)
        return x.clone()

    @watch.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    graph = make_fx(function, tracing_mode="fake")(torch.ones(4), torch.ones(4))
    calls = LibraryCalls("never", is_training=False)
    call = compile_graph(graph, records.new("inference"), {}, calls, Weights(), {})
    args = [plain(4), plain(4)]
    watched.append(weakref.ref(args[0]))
    call(args)
    assert args == []
    assert alive == [False]


def write_first(x: Tensor) -> Tensor:
    x[0] = 1
    return x * 2


@pytest.mark.parametrize(
    ("function", "is_bare"),
    [
        (lambda x: (x * 2 + 1, x.sum()), True),
        (lambda x: x.view(-1), False),
        (write_first, False),
    ],
)
def test_graphs_are_called_as_they_are_where_aotautograd_adds_nothing(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], is_bare: bool
) -> None:
    calls: list[int] = []
    call = entry._call_bare

    def count(boxed: Any, *args: Any) -> Any:
        calls.append(len(args))
        return call(boxed, *args)

    monkeypatch.setattr(entry, "_call_bare", count)
    x = plain(3, 4)
    expected = x.clone()
    torch.testing.assert_close(compiled(function)(x), function(expected))
    torch.testing.assert_close(x, expected)
    assert calls == [1] * is_bare
