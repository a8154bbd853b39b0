"""Judge PyTorch's own op samples: an op in, what the backend makes of it out.

The answer of compiled code is compared with eager's: values, dtypes, shapes and strides, with the
arguments as they are and in other forms: views, expanded or negated ones, with a dynamic size.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from types import FunctionType
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

from turbine import errors
from turbine.capture import support
from turbine.dynamo import argument_forms, records
from turbine.dynamo.counting import counters
from turbine.dynamo.entry import backend
from turbine.dynamo.records import GraphRecord

# From best to worst; an op is as good as its worst sample.
FREE = "free"  # only views and fills: nothing to compile
COMPILED = "compiled"
PARTLY = "partly"  # the right answer, and some of the ops ran in PyTorch
FALLS_BACK = "falls back"  # the right answer, and every op ran in PyTorch
FAILS = "fails"  # a wrong answer, or an error where eager gives an answer
_ORDER = (FREE, COMPILED, PARTLY, FALLS_BACK, FAILS)
# Not counted: there is nothing to compare with, or nothing to compile.
RANDOM = "random"  # draws random numbers, or gives memory as it was: shapes are compared
NOT_TRACED = "not traced"  # PyTorch's own `aot_eager` backend does not manage either
NO_GRADIENT = "no gradient"
STATUSES = (*_ORDER, RANDOM, NOT_TRACED, NO_GRADIENT)

# How many samples are looked through, and how many unlike each other are run.
_LOOKED_THROUGH = 200
SAMPLES = 3

# In order of preference; an op without f32 is judged in the first of the others that it has.
_DTYPES = (
    torch.float32,
    torch.int64,
    torch.complex64,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.bool,
)
# Their results are memory as it was.
_UNDEFINED = (
    "empty empty_like new_empty empty_strided empty_permuted new_empty_strided resize_ resize_as_"
).split()
# A result that eager itself only gives to so many digits may differ by this many times as much.
_TIMES_EAGERS_ERROR = 3.0
_REASON_LENGTH = 200


@dataclass(frozen=True)
class Verdict:
    """What became of one direction of an op, and why it is not better."""

    status: str
    reason: str = ""


@dataclass(frozen=True)
class Judged:
    """An op of `op_db` and its verdicts."""

    name: str
    forward: Verdict
    backward: Verdict

    @property
    def fails(self) -> bool:
        """Whether either direction does."""
        return FAILS in (self.forward.status, self.backward.status)


@dataclass(frozen=True)
class Case:
    """A call: PyTorch's function and one sample of its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    of_results: Callable[[Any], Any] = lambda results: results  # those that are differentiable
    seed: int = 0
    form: str | None = None  # of the arguments, one of `argument_forms.FORMS`; None is as they are


def ops() -> dict[str, Any]:
    """PyTorch's op samples by name: "add", "std.unbiased"."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise errors.MissingExtra(
            f"PyTorch's op samples need a library that is not installed: {error}",
            hint="pip install expecttest",
        ) from error
    return {_name(op): op for op in op_db}


def _name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def judge(
    name: str, op: Any, *, seed: int = 0, samples: int = SAMPLES, forms: Sequence[str] = ()
) -> Judged:
    """Run an op's samples forward and, where it has a gradient, backward.

    Each is run again with its arguments in each of the forms; of that, failures count.
    """
    undefined = op.name in _UNDEFINED
    forward = _judge_all(cases(op, seed, samples), undefined, forms)
    if not op.supports_autograd:
        return Judged(name, combined(forward), Verdict(NO_GRADIENT))
    trained = cases(op, seed, samples, requires_grad=True)
    backward = _judge_all(trained, undefined, forms, training=True)
    return Judged(name, combined(forward), combined(backward, NO_GRADIENT))


def _judge_all(
    found: Iterable[Case], undefined: bool, forms: Sequence[str], *, training: bool = False
) -> list[Verdict]:
    verdicts = []
    for case in found:
        verdicts.append(judge_case(case, undefined, training=training))
        if verdicts[-1].status in (FAILS, NOT_TRACED, NO_GRADIENT):
            continue
        given = (case.args, case.kwargs)
        for form in (form for form in forms if argument_forms.can_apply(form, given)):
            verdict = judge_case(replace(case, form=form), undefined, training=training)
            if verdict.status == FAILS:
                verdicts.append(Verdict(FAILS, f"{form} arguments: {verdict.reason}"))
    return verdicts


def combined(verdicts: Sequence[Verdict], empty: str = NOT_TRACED) -> Verdict:
    """The worst of those that count, with every reason; one that draws makes all of it random."""
    counted = [verdict for verdict in verdicts if verdict.status in _ORDER]
    random_ones = [verdict for verdict in verdicts if verdict.status == RANDOM]
    if random_ones and not any(verdict.status == FAILS for verdict in counted):
        return random_ones[0]
    if not counted:
        return verdicts[0] if verdicts else Verdict(empty, "no sample runs in eager PyTorch")
    worst = max(counted, key=lambda verdict: _ORDER.index(verdict.status)).status
    reasons = dict.fromkeys(v.reason for v in counted if v.status == worst and v.reason)
    return Verdict(worst, "; ".join(reasons))


def cases(op: Any, seed: int, count: int, *, requires_grad: bool = False) -> Iterator[Case]:
    """Samples that differ in more than their numbers, in the order the op gives them."""
    dtype = next((d for d in _DTYPES if d in op.supported_dtypes("cpu")), None)
    if dtype is None or (requires_grad and dtype not in op.supported_backward_dtypes("cpu")):
        return
    _seed(seed)
    found = op.sample_inputs("cpu", dtype, requires_grad=requires_grad)
    for sample in _unlike(islice(found, _LOOKED_THROUGH), count):
        args = (sample.input, *sample.args)
        of_results = sample.output_process_fn_grad
        yield Case(_traceable(op.op), args, dict(sample.kwargs), of_results, seed)


def _traceable(function: Callable[..., Any]) -> Callable[..., Any]:
    """A call of the function from here: Dynamo looks into no frame of PyTorch's own by itself."""
    if isinstance(function, FunctionType) and "torch/testing/" in function.__code__.co_filename:
        function = _moved(function)

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def _moved(function: FunctionType) -> FunctionType:
    """A function of PyTorch's test library as if it were here, drawing from the seed set here."""
    code = function.__code__.replace(co_filename=__file__)
    names = {**function.__globals__, "wrapper_set_seed": _call}
    moved = FunctionType(
        code, names, function.__name__, function.__defaults__, function.__closure__
    )
    moved.__kwdefaults__ = function.__kwdefaults__
    return moved


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _unlike(samples: Iterable[Any], count: int) -> list[Any]:
    """The first of each kind; a kind is the ranks of tensors and the types of all else."""
    kinds: dict[Any, Any] = {}
    for sample in samples:
        leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
        kinds.setdefault((tuple(map(_kind, leaves)), tuple(sorted(sample.kwargs))), sample)
        if len(kinds) == count:
            break
    return list(kinds.values())


def _kind(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return type(leaf)
    return leaf.dim(), leaf.numel() == 0, leaf.dtype


def judge_case(case: Case, undefined: bool = False, *, training: bool = False) -> Verdict:
    """Compile one call anew and compare it with eager."""
    run = _train if training else _infer
    try:
        expected = run(case, case.function)
    except Exception as error:
        return Verdict(NOT_TRACED, f"eager PyTorch: {_first_line(error)}")
    if training and not expected.gradients:
        return Verdict(NO_GRADIENT)
    rescued = counters()["rescued_calls"]
    with records.listening() as heard:
        problem, draws = _attempt(case, run, expected, partial(backend), undefined, heard)
    if problem is not None:
        return _unless_torch_fails_too(case, run, expected, undefined, problem)
    if draws:
        return Verdict(RANDOM)
    kinds = ("backward",) if training else ("inference", "forward")
    graphs = [graph for graph in heard if graph.kind in kinds]
    return _verdict(graphs, was_rescued=counters()["rescued_calls"] > rescued)


@dataclass(frozen=True)
class _Answer:
    """All that a call changes: its results, the gradients it leads to, and its arguments."""

    results: list[Any]
    gradients: list[Any]
    args: list[Any]

    def leaves(self) -> list[Any]:
        return [*self.results, *self.gradients, *self.args]


_Run = Callable[[Case, Callable[..., Any]], _Answer]


def _infer(case: Case, function: Callable[..., Any]) -> _Answer:
    args, kwargs = _fresh(case)
    _seed(case.seed)
    with torch.no_grad():
        results = function(*args, **kwargs)
    return _Answer(pytree.tree_leaves(results), [], _memory((args, kwargs)))


def _memory(tree: Any) -> list[torch.Tensor]:
    """Tensors, and what they are views of."""
    tensors = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return [*tensors, *(x._base for x in tensors if x._base is not None)]


def _train(case: Case, function: Callable[..., Any]) -> _Answer:
    args, kwargs = _fresh(case)
    inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if _is_differentiable(leaf)]
    _seed(case.seed)
    results = function(*args, **kwargs)
    ends = [r for r in pytree.tree_leaves(case.of_results(results)) if _is_differentiable(r)]
    starts = [torch.randn_like(end) for end in ends]
    gradients = torch.autograd.grad(ends, inputs, starts, allow_unused=True) if ends else ()
    detached = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, results)
    return _Answer(pytree.tree_leaves(detached), list(gradients), [])


def _fresh(case: Case) -> tuple[Any, Any]:
    """A copy of the arguments with the same strides and sharing, or in the form asked for."""
    detached = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (case.args, case.kwargs))
    copied = copy.deepcopy(detached)
    if case.form is not None:
        copied = argument_forms.apply(case.form, copied, case.seed)
    leaves = zip(
        pytree.tree_leaves((case.args, case.kwargs)), pytree.tree_leaves(copied), strict=True
    )
    for old, new in leaves:
        if _is_differentiable(old):
            new.requires_grad_()
    args, kwargs = copied
    return args, kwargs


def _is_differentiable(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)


def _attempt(
    case: Case,
    run: _Run,
    expected: _Answer,
    compiler: Any,
    undefined: bool,
    heard: list[GraphRecord],
    fullgraph: bool = True,
) -> tuple[str | None, bool]:
    """What is wrong with the answer of compiled code, and whether it drew random numbers."""
    torch._dynamo.reset()
    dynamic = None if case.form == "dynamic" else False
    function = torch.compile(case.function, backend=compiler, fullgraph=fullgraph, dynamic=dynamic)
    try:
        found = run(case, function)
    except Exception as error:
        return f"{type(error).__name__}: {_first_line(error)}", False
    draws = undefined or any(_draws(graph) for graph in heard)
    # PyTorch promises nothing about the strides of gradients.
    problem = unlike(found.leaves(), expected.leaves(), strides=False)
    if problem is None:
        problem = unlike(found.results, expected.results)
        if problem is not None and _is_as_traced(case, found.results):
            problem = None
    if problem is not None or draws:
        return problem, draws
    apart = _apart(found.leaves(), expected.leaves())
    if apart is not None and _is_as_near(case, run, found.leaves(), expected.leaves()):
        return None, False
    return apart, False


def _is_as_traced(case: Case, found: Sequence[Any]) -> bool:
    """Whether strides are those of PyTorch's shape functions; some of its kernels give others."""
    copied = _fresh(case)  # a fake tensor has no storage to copy
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        args, kwargs = pytree.tree_map_only(torch.Tensor, mode.from_tensor, copied)
        try:
            traced = case.function(*args, **kwargs)
        except Exception:  # an op that has none
            return False
    return unlike(found, pytree.tree_leaves(traced)) is None


def unlike(found: Sequence[Any], expected: Sequence[Any], *, strides: bool = True) -> str | None:
    """How results differ in kind, not in values."""
    if len(found) != len(expected):
        return f"{len(found)} results in place of {len(expected)}"
    for index, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if _described(ours, strides) != _described(theirs, strides):
            wrong, right = _described(ours, strides), _described(theirs, strides)
            return f"value {index} is {wrong} in place of {right}"
    return None


def _described(value: Any, with_strides: bool) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    if value.layout is not torch.strided or not with_strides:
        return f"{value.dtype} {list(value.shape)} {value.layout}"
    # The stride of an axis with one element means nothing.
    strides = [s for n, s in zip(value.shape, value.stride(), strict=True) if n > 1]
    return f"{value.dtype} {list(value.shape)} strides {strides if value.numel() else []}"


def _apart(found: Sequence[Any], expected: Sequence[Any]) -> str | None:
    """How values differ, beyond the tolerance PyTorch's own tests have for their dtype."""
    for index, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if not isinstance(theirs, torch.Tensor):
            if ours != theirs and not (ours != ours and theirs != theirs):
                return f"value {index} is {ours} in place of {theirs}"
            continue
        try:
            torch.testing.assert_close(ours, theirs, equal_nan=True)
        except AssertionError as error:
            return f"value {index}: {' '.join(str(error).split())[:_REASON_LENGTH]}"
    return None


def _is_as_near(case: Case, run: _Run, found: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether the answer is about as near as eager's to the one in twice the precision."""
    wide = replace(case, args=_widened(case.args), kwargs=_widened(case.kwargs))
    try:
        exact = run(wide, case.function).leaves()
    except Exception:  # an op that has no such dtype
        return False
    if len(exact) != len(expected):
        return False
    triples = zip(found, expected, exact, strict=True)
    return all(_near(*triple) for triple in triples if isinstance(triple[1], torch.Tensor))


def _near(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> bool:
    same = (ours == theirs) | ((ours != ours) & (theirs != theirs))
    if bool(same.all()):
        return True
    if exact.dtype == theirs.dtype or exact.shape != theirs.shape:
        return False
    allowed = _TIMES_EAGERS_ERROR * (theirs[~same] - exact[~same]).abs().max()
    return bool(((ours[~same] - exact[~same]).abs() <= allowed).all())


def _widened(tree: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, _wide, tree)


def _wide(x: torch.Tensor) -> torch.Tensor:
    if not (x.is_floating_point() or x.is_complex()):
        return x
    dtype = torch.complex128 if x.is_complex() else torch.float64
    return x.detach().to(dtype).requires_grad_(x.requires_grad)


def _unless_torch_fails_too(
    case: Case, run: _Run, expected: _Answer, undefined: bool, problem: str
) -> Verdict:
    """A failure; but what `aot_eager` cannot do either is left to eager PyTorch, so look again."""
    theirs, _ = _attempt(case, run, expected, "aot_eager", undefined, [])
    if theirs is None:
        return Verdict(FAILS, problem)
    ours, _ = _attempt(case, run, expected, partial(backend), undefined, [], fullgraph=False)
    if ours is None:
        return Verdict(NOT_TRACED, theirs)
    broken, _ = _attempt(case, run, expected, "aot_eager", undefined, [], fullgraph=False)
    return Verdict(FAILS, ours) if broken is None else Verdict(NOT_TRACED, theirs)


def _draws(graph: GraphRecord) -> bool:
    return any(op.reason == support.DRAWS for op in graph.left)


def _verdict(graphs: Sequence[GraphRecord], *, was_rescued: bool) -> Verdict:
    for graph in graphs:
        for part in graph.parts:
            part.settle()
    compiled = sum(p.ops.total() for g in graphs for p in g.parts if p.compiled is not None)
    reasons = {f"{op.op}: {op.reason}" for graph in graphs for op in graph.left}
    if was_rescued:
        reasons.add("a call failed in compiled code and was done again")
    if reasons:
        return Verdict(PARTLY if compiled else FALLS_BACK, "; ".join(sorted(reasons)))
    return Verdict(COMPILED if compiled else FREE)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Dynamo names the backend first and what it raised next.
    told = lines[1:] if lines and lines[0].endswith(" raised:") else lines
    return told[0][:_REASON_LENGTH] if told else type(error).__name__
