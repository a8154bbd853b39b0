"""A kernel is a PyTorch op: eager, under torch.compile, in exports, with gradients."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim
from torch.testing import assert_close

import turbine
import turbine.kernel as tk
import turbine.kernel.lang as tkl
from tests.models import Fn
from turbine import aot, dynamo, errors
from turbine.kernel.call.op_declaration import schema_text

programs = pytest.mark.sweep(3, "programs")

M, N, K, B, D = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.sym.B, tkl.sym.D
T = tkl.types.T
X = torch.linspace(-1, 1, 12).reshape(3, 4)
Function = Callable[..., Any]


@tk.gen.kernel(M)
def softmax_rows(x: tkl.InputBuffer[M, N, T], y: tkl.OutputBuffer[M, N, T]) -> None:
    i = tkl.program_id(0)
    row = tkl.load(x, (i, 0), (1, N))
    raised = tkl.exp(row - tkl.max(row))
    tkl.store(y, (i, 0), raised / tkl.sum(raised))


@tk.gen.kernel(N // B)
def accumulate(
    total: tkl.InOutBuffer[N, tkl.f32],
    part: tkl.InputBuffer[N, tkl.f32],
    largest: tkl.OutputBuffer[1, tkl.f32].filled(-1.0),
    scale: tkl.f32 = 2.0,
    shift: tkl.i16 = 0,
    is_negated: tkl.bool = False,
) -> None:
    start = tkl.program_id(0) * B
    tile = tkl.load(part, (start,), (B,)) * scale + shift
    tile = tkl.where(is_negated, -tile, tile)
    tkl.atomic_max(largest, (0,), tkl.broadcast(tkl.max(tile), (1,)))
    tkl.store(total, (start,), tkl.load(total, (start,), (B,)) + tile)


def accumulated(
    total: Tensor, part: Tensor, scale: float = 2.0, shift: int = 0, is_negated: bool = False
) -> tuple[Tensor, Tensor]:
    """The new total, and the largest that was added."""
    added = (part * scale + shift) * (-1 if is_negated else 1)
    return total + added, added.max().clamp(min=-1.0).reshape(1)


@tk.gen.kernel(M // B)
def shifted_gemm(
    a: tkl.InputBuffer[M, K, tkl.f32],
    b: tkl.InputBuffer[K, N, tkl.f32],
    y: tkl.OutputBuffer[M, N, tkl.f32],
    bias: tkl.InputBuffer[N, tkl.f32] | None = None,
) -> None:
    i = tkl.program_id(0) * B
    product = tkl.dot(tkl.load(a, (i, 0), (B, K)), tkl.load(b, (0, 0), (K, N)))
    if bias is not None:
        product = product + tkl.load(bias, (0,), (N,))
    tkl.store(y, (i, 0), product)


@tk.gen.kernel(M)
def pairs(
    x: tkl.InputBuffer[2 * M, tkl.f32], y: tkl.OutputBuffer[M + 1, tkl.f32].filled(7)
) -> None:
    i = tkl.program_id(0)
    tkl.store(y, (i,), tkl.load(x, (2 * i,), (1,)) + tkl.load(x, (2 * i + 1,), (1,)))


@pytest.fixture(autouse=True)
def forget_graphs() -> Iterator[None]:
    yield
    torch.compiler.reset()


def compiled(function: Function, **options: Any) -> Function:
    made: Function = torch.compile(function, backend="turbine", fullgraph=True, **options)
    return made


# Schemas


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (softmax_rows, "tk::f(Tensor x) -> (Tensor)"),
        (
            accumulate,
            "tk::f(Tensor(a0!) total, Tensor part, float scale=2.0, SymInt shift=0, "
            "bool is_negated=False) -> (Tensor)",
        ),
        (shifted_gemm, "tk::f(Tensor a, Tensor b, Tensor? bias=None) -> (Tensor)"),
    ],
)
def test_schemas_describe_arguments_and_results(kernel: tk.Kernel, text: str) -> None:
    assert schema_text(kernel.signature, "f") == text


def test_defaults_before_required_arguments_are_not_in_the_schema() -> None:
    @tk.gen.kernel(1)
    def mixed(
        bias: tkl.InputBuffer[4, tkl.f32] | None,
        y: tkl.OutputBuffer[4, tkl.f32],
        x: tkl.InputBuffer[4, tkl.f32],
        z: tkl.f32 = 1.0,
    ) -> None:
        tkl.store(y, (0,), tkl.load(x, (0,), (4,)) + z)

    text = schema_text(mixed.signature, "mixed")
    assert text == "tk::mixed(Tensor? bias, Tensor x, float z=1.0) -> (Tensor)"
    assert_close(mixed.op(None, torch.ones(4)), torch.full((4,), 2.0))


def numbered() -> tk.Kernel:
    @tk.gen.kernel(1)
    def name(x: tkl.InputBuffer[4, tkl.f32], y: tkl.OutputBuffer[4, tkl.f32]) -> None:
        tkl.store(y, (0,), tkl.load(x, (0,), (4,)) + 1)

    return name


@programs
def test_kernels_of_one_name_have_separate_ops_that_outlive_them() -> None:
    first, second = numbered(), numbered()
    assert [first.op.schema.qualified, second.op.schema.qualified] == ["tk::name_1", "tk::name_2"]
    program = torch.export.export(Fn(first), (torch.zeros(4),))
    del first, second
    gc.collect()
    assert_close(program.module()(torch.zeros(4)), torch.ones(4))


def test_equal_sizes_give_one_kernel() -> None:
    kernel = numbered()
    sized = kernel.using(B=32)
    assert kernel.using(B=32) is sized
    assert kernel.using(B=16) is not sized
    assert kernel.using() is not kernel
    kernel.register_backward(lambda grad_y: grad_y)
    assert sized.gradient is None
    assert kernel.using(B=32).gradient is not None


def test_models_that_hold_a_kernel_can_be_copied_and_pickled() -> None:
    model = Fn(softmax_rows)
    assert copy.deepcopy(model).function is softmax_rows
    assert pickle.loads(pickle.dumps(model)).function is softmax_rows
    other = pickle.loads(pickle.dumps(accumulate.using(B=32)))
    assert other.blocks == {"B": 32}
    local = numbered()
    assert copy.deepcopy(local) is local
    with pytest.raises((pickle.PicklingError, AttributeError), match="name"):
        pickle.dumps(local)


# Eager mode


def test_the_op_runs_the_kernel() -> None:
    assert_close(softmax_rows.op(X), X.softmax(-1))
    assert_close(torch.ops.tk.softmax_rows(2 * X), (2 * X).softmax(-1))


@pytest.mark.parametrize("call", [accumulate, lambda *args: accumulate.op(*args)])
def test_a_kernel_writes_to_the_callers_tensor(call: Function) -> None:
    for settings in ((), (0.5, 3, True)):
        total, part = torch.arange(5.0), torch.linspace(-1, 2, 5)
        expected, largest = accumulated(total, part, *settings)
        assert_close(call(total, part, *settings), largest)
        assert_close(total, expected)


def test_the_op_runs_in_the_interpreter_if_the_option_is_set() -> None:
    softmax_rows.op(X)
    compiles = softmax_rows.explain_recompiles()
    with turbine.config.override(interpret=True):
        assert_close(torch.ops.tk.softmax_rows(X.bfloat16()), X.bfloat16().softmax(-1))
        assert_close(softmax_rows(X.clone().requires_grad_()), X.softmax(-1))
    assert softmax_rows.explain_recompiles() == compiles


def test_tensors_on_other_devices_are_rejected() -> None:
    run = softmax_rows.op.core.eager
    with pytest.raises(errors.KernelError, match="softmax_rows was called with tensors on meta"):
        run(X.to("meta"))


@pytest.mark.parametrize("by", ["call", "op"])
def test_invalid_calls_are_rejected_with_real_and_fake_tensors(by: str) -> None:
    call = shifted_gemm if by == "call" else shifted_gemm.op
    for device in ("cpu", "meta"):
        a, b = torch.ones(3, 4, device=device), torch.ones(5, 6, device=device)
        with pytest.raises(errors.KernelError, match="K is 4 from axis 1 of a and 5 from axis 0"):
            call(a, b)
        with pytest.raises(errors.KernelError, match="of 2 axes, and was given a tensor of 1"):
            call(a, b[0])
        with pytest.raises(errors.KernelError, match="a tensor of f32, and was given one of"):
            call(a.double(), b[:4])


@programs
@pytest.mark.parametrize(
    ("kernel", "args"),
    [
        (softmax_rows, (X,)),
        (accumulate, (torch.zeros(5), torch.ones(5), 3.0, 4, True)),
        (shifted_gemm, (X, X.T.contiguous(), torch.ones(3))),
    ],
)
def test_opcheck_passes(kernel: tk.Kernel, args: tuple[Any, ...]) -> None:
    torch.library.opcheck(kernel.op.op, args)


def test_vmap_calls_the_kernel_for_each_element() -> None:
    batch = torch.stack([X, -X])
    assert_close(torch.vmap(softmax_rows)(batch), batch.softmax(-1))


# torch.compile


def test_torch_compile_captures_a_kernel_in_one_graph() -> None:
    fresh = softmax_rows.using()
    assert_close(compiled(lambda x: fresh(2 * x) + 1)(X), (2 * X).softmax(-1) + 1)


@programs
def test_dynamic_shapes_do_not_recompile() -> None:
    graphs = []

    def count(graph: Any, examples: Any) -> Any:
        graphs.append(graph)
        return dynamo.backend(graph, examples)

    function = torch.compile(shifted_gemm, backend=count, fullgraph=True, dynamic=True)
    for m, n, k in ((3, 4, 5), (70, 6, 2), (9, 8, 7)):
        a, b, bias = torch.randn(m, k), torch.randn(k, n), torch.randn(n)
        assert_close(function(a, b, bias=bias), a @ b + bias)
    assert len(graphs) == 1


@programs
def test_compiled_code_writes_to_the_callers_tensor() -> None:
    def add(total: Tensor, part: Tensor, shift: int) -> Any:
        largest = accumulate(total, part, shift=shift)
        return total * largest

    function = compiled(add, dynamic=True)
    for size, shift in ((5, 2), (7, 3), (6, 4)):
        total, part = torch.arange(float(size)), torch.linspace(-1, 2, size)
        expected, largest = accumulated(total, part, shift=shift)
        given = part.clone()
        assert_close(function(total, part, shift), expected * largest)
        assert_close(total, expected)
        assert torch.equal(part, given)


@programs
def test_values_captured_before_a_mutation_are_kept() -> None:
    def twice(x: Tensor, part: Tensor) -> tuple[Tensor, Tensor]:
        total = x + 1
        before = total * 2
        accumulate(total, part)
        return before, total

    x, part = torch.arange(5.0), torch.ones(5)
    assert_close(compiled(twice)(x, part), (2 * x + 2, x + 3))


def test_invalid_calls_in_a_trace_name_the_symbols() -> None:
    function = torch.compile(shifted_gemm, backend="eager", dynamic=True, fullgraph=True)
    with pytest.raises(Exception, match=r"K is .* from axis 1 of a and .* from axis 0 of b"):
        function(torch.ones(3, 4), torch.ones(5, 6))


# Exports


def test_exported_programs_support_dynamic_shapes() -> None:
    rows, columns = Dim("rows"), Dim("columns")
    program = torch.export.export(
        Fn(softmax_rows), (X,), dynamic_shapes=(({0: rows, 1: columns},),), strict=False
    )
    assert [n.target for n in program.graph.nodes if n.op == "call_function"] == [
        softmax_rows.op.op
    ]
    for shape in ((3, 4), (5, 2)):
        x = torch.randn(shape)
        assert_close(program.module()(x), x.softmax(-1))


@programs
def test_sizes_are_inferred_from_expressions() -> None:
    half = Dim("half")
    artifact = aot.export(
        Fn(lambda x: pairs(x)), args=(torch.ones(6),), dynamic_shapes=(({0: 2 * half},),)
    ).compile()
    for size in (6, 10):
        x = torch.randn(size)
        expected = torch.cat([x.reshape(-1, 2).sum(1), torch.tensor([7.0])])
        assert_close(artifact(x), expected)
        assert_close(pairs(x), expected)


@programs
def test_specialized_sizes_specialize_the_graph() -> None:
    fixed = tk.Kernel(softmax_rows.function, softmax_rows.grid, specialize=[N])
    function = torch.compile(fixed, backend="eager", fullgraph=True, dynamic=True)
    for shape in ((3, 4), (5, 4), (5, 6)):
        x = torch.randn(shape)
        assert_close(function(x), x.softmax(-1))


def raised(by: float) -> tk.Kernel:
    @tk.gen.kernel(1)
    def shift(x: tkl.InputBuffer[M, N, tkl.f32], y: tkl.OutputBuffer[M, N, tkl.f32]) -> None:
        tkl.store(y, (0, 0), tkl.load(x, (0, 0), (M, N)) + by)

    return shift


@programs
def test_one_artifact_holds_kernels_of_one_name_and_all_kinds_of_sizes() -> None:
    one, other = raised(1), raised(2)
    function = Fn(lambda x: (one(x), other(x), one(x.T), one(other(x)), softmax_rows(x.T)))
    artifact = aot.export(function, args=(X,)).compile()
    assert_close(artifact(X), (X + 1, X + 2, X.T + 1, X + 3, X.T.softmax(-1)))


class Net(torch.nn.Module):
    """The last listing of the talk."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64, dtype=torch.float32)

    def forward(self, x: Tensor) -> Any:
        return softmax_rows(self.linear(x))


@programs
def test_artifacts_run_without_the_kernels(tmp_path: Path) -> None:
    model, a = Net(), torch.ones(64, 64)
    exported = aot.export(model, args=(a,))
    assert "flow.dispatch" in str(exported.mlir_module)
    artifact = exported.compile(tmp_path / "softmax.turbine")
    expected = model.forward(a).detach()
    assert_close(artifact(a), expected)
    script = """
import sys, numpy, turbine
found = turbine.load(sys.argv[1])(numpy.ones((64, 64), numpy.float32))
rooms = ("turbine.kernel", "turbine.ops", "iree.compiler", "torch")
assert not [name for name in sys.modules if name.startswith(rooms)]
sys.stdout.buffer.write(numpy.asarray(found).tobytes())
"""
    command = [sys.executable, "-c", script, str(tmp_path / "softmax.turbine")]
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    found = torch.frombuffer(bytearray(done.stdout), dtype=torch.float32).reshape(64, 64)
    assert_close(found, expected)


@programs
def test_an_exported_program_writes_to_the_callers_tensor() -> None:
    class Running(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.total = torch.nn.Buffer(torch.zeros(4))

        def forward(self, x: Tensor, part: Tensor) -> Any:
            accumulate(self.total, part, shift=1)
            return accumulate(x, self.total), softmax_rows(self.total.reshape(2, 2))

    artifact, model = aot.export(Running(), args=(X[0], X[1])).compile(), Running()
    for _ in range(2):
        ours, theirs = X[0].clone(), X[0].clone()
        assert_close(artifact(ours, X[1]), model(theirs, X[1]))
        assert_close(ours, theirs)


@programs
def test_a_procedure_calls_kernels() -> None:
    class Program(aot.CompiledModule):
        def run(self, x: Any = aot.AbstractTensor(None, 4)) -> Any:
            return self.compute(x)

        @aot.jittable
        def compute(x: Any) -> Any:
            return softmax_rows(softmax_rows(x) * 3)

    artifact = aot.export(Program).compile()
    for rows in (3, 2):
        assert_close(artifact.run(X[:rows]), (X[:rows].softmax(-1) * 3).softmax(-1))


# Gradients


@tk.gen.kernel(M)
def layernorm(
    x: tkl.InputBuffer[M, N, T],
    weight: tkl.InputBuffer[N, T],
    y: tkl.OutputBuffer[M, N, T],
    mean: tkl.OutputBuffer[M, T],
    scale: tkl.OutputBuffer[M, T],
) -> None:
    i = tkl.program_id(0)
    row = tkl.load(x, (i, 0), (1, N))
    average = tkl.sum(row, 1) / N
    centered = row - average
    by = tkl.rsqrt(tkl.sum(centered * centered, 1) / N + 1e-5)
    tkl.store(y, (i, 0), centered * by * tkl.load(weight, (0,), (N,)))
    tkl.store(mean, (i,), average)
    tkl.store(scale, (i,), by)


@layernorm.register_backward
@tk.gen.kernel(1)
def layernorm_backward(
    x: tkl.InputBuffer[M, N, T],
    weight: tkl.InputBuffer[N, T],
    mean: tkl.InputBuffer[M, T],
    scale: tkl.InputBuffer[M, T],
    grad_y: tkl.InputBuffer[M, N, T],
    grad_x: tkl.OutputBuffer[M, N, T],
    grad_weight: tkl.OutputBuffer[N, T],
) -> None:
    gain = tkl.load(weight, (0,), (N,))

    @tkl.for_loop(0, M, init_args=[tkl.zeros((N,), gain.dtype)])
    def rows(i: Any, total: Any) -> Any:
        by = tkl.load(scale, (i,), (1,))
        normal = (tkl.load(x, (i, 0), (1, N)) - tkl.load(mean, (i,), (1,))) * by
        grad = tkl.load(grad_y, (i, 0), (1, N))
        weighted = grad * gain
        along = tkl.sum(weighted * normal) / N
        tkl.store(grad_x, (i, 0), by * (weighted - normal * along - tkl.sum(weighted) / N))
        return (total + tkl.reshape(grad * normal, (N,)),)

    tkl.store(grad_weight, (0,), rows[0])


@programs
def test_opcheck_passes_with_gradients() -> None:
    args = X.clone().requires_grad_(), torch.ones(4, requires_grad=True)
    torch.library.opcheck(layernorm.op.op, args)


def test_torch_func_differentiates_kernels() -> None:
    weight = torch.rand(4)
    ours = torch.func.grad(lambda x: (layernorm(x, weight)[0] ** 3).sum())
    layer_norm = torch.nn.functional.layer_norm
    theirs = torch.func.grad(lambda x: (layer_norm(x, (4,), weight) ** 3).sum())
    assert_close(ours(X), theirs(X), rtol=1e-4, atol=1e-4)


@programs
def test_kernels_may_be_gradients_of_kernels() -> None:
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: layernorm(x, w)[0], (x, weight))


class Trained(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = torch.nn.Linear(8, 16)
        self.weight = torch.nn.Parameter(torch.ones(16))
        self.out = torch.nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Any:
        return self.out(layernorm(self.into(x), self.weight)[0])


def losses(prepare: Function) -> Tensor:
    torch.manual_seed(0)
    model = Trained()
    step = prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    x = torch.randn(32, 8)
    found = []
    for _ in range(3):
        loss = torch.nn.functional.mse_loss(step(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return torch.stack(found)


def test_models_with_kernels_train_alike_in_every_mode() -> None:
    def reference(model: Trained) -> Function:
        def step(x: Tensor) -> Any:
            inner = model.into(x)
            return model.out(torch.nn.functional.layer_norm(inner, (16,), model.weight))

        return step

    expected = losses(reference)
    assert expected[-1] < expected[0] / 2
    for backend in ("aot_eager", "turbine"):
        step = lambda model: torch.compile(model, backend=backend, fullgraph=True)  # noqa: B023, E731
        assert_close(losses(step), expected)
    assert_close(losses(lambda model: model), expected)


def differentiable(backward: Any, **options: Any) -> tk.Kernel:
    @tk.gen.kernel(1)
    def scaled(
        x: tkl.InputBuffer[4, tkl.f32], y: tkl.OutputBuffer[4, tkl.f32], by: tkl.f32 = 3.0
    ) -> None:
        tkl.store(y, (0,), tkl.load(x, (0,), (4,)) * by)

    if backward is not None:
        scaled.register_backward(backward, **options)
    return scaled


def save_factor(ctx: Any, inputs: Any, output: Any) -> None:
    _, ctx.by = inputs


@pytest.mark.parametrize(
    ("backward", "options"),
    [
        (lambda by, grad_y: grad_y * by, {}),
        (lambda grad_y, by: {"x": grad_y * by}, {}),
        (lambda ctx, grad: (grad * 3, None), {}),
        (lambda c, grad: (grad * c.by, None), {"setup_context": save_factor}),
    ],
)
def test_functions_may_be_gradients_of_kernels(backward: Any, options: Any) -> None:
    x = torch.ones(4, requires_grad=True)
    (grad,) = torch.autograd.grad(differentiable(backward, **options)(x).sum(), x)
    assert_close(grad, torch.full((4,), 3.0))


def test_a_missing_gradient_is_an_error() -> None:
    result = differentiable(None)(torch.ones(4, requires_grad=True))
    with pytest.raises(errors.KernelError, match=r"scaled has no gradient(.|\n)*register_backward"):
        result.sum().backward()


def test_a_missing_gradient_under_torch_compile_is_a_single_error(
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    recwarn: pytest.WarningsRecorder,
) -> None:
    kernel = differentiable(None)
    compiled = torch.compile(lambda x: kernel(x).sum(), backend="turbine")
    result = compiled(torch.ones(4, requires_grad=True))
    assert result.item() == 12.0
    with pytest.raises(errors.KernelError, match=r"scaled has no gradient(.|\n)*register_backward"):
        result.backward()
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list
    assert not [row for row in caplog.records if row.levelname in ("WARNING", "ERROR")]
    assert not torch.is_anomaly_enabled()


def test_invalid_gradients_are_rejected() -> None:
    with pytest.raises(errors.KernelError, match="takes an unknown value of the call 'grad_z'"):
        differentiable(lambda grad_z: grad_z)
    with pytest.raises(errors.KernelError, match=r"gives an unknown gradient .* 'grad_weight'"):
        differentiable(layernorm_backward)
    with pytest.raises(errors.KernelError, match="accumulate writes to total, and has no grad"):
        accumulate.register_backward(softmax_rows)
    with pytest.raises(errors.KernelError, match="accumulate writes to total, and cannot be"):
        differentiable(accumulate)
    x = torch.ones(4, requires_grad=True)
    result = differentiable(lambda grad_y: (grad_y, None))(x)
    with pytest.raises(errors.KernelError, match="gives 2 gradients, and scaled takes 1 tensors"):
        result.sum().backward()


@tk.gen.kernel(N // B, blocks={B: 4})
def shown(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]) -> None:
    start = tkl.program_id(0) * B
    tile = tkl.load(x, (start,), (B,))
    tkl.print(tile)
    tkl.store(y, (start,), tile)


def test_prints_work_under_torch_compile(capsys: pytest.CaptureFixture[str]) -> None:
    function = compiled(lambda x: shown(2 * x) + 1)
    for x in (torch.ones(2), torch.zeros(2)):
        assert_close(function(x), 2 * x + 1)
        assert capsys.readouterr().out.endswith(f"program (0,): [{2 * x[0]:g} {2 * x[1]:g} . .]\n")


def test_exporting_a_kernel_that_prints_warns() -> None:
    with pytest.warns(UserWarning, match="kernel shown prints, and exported programs do not"):
        aot.export(Fn(shown), args=(torch.ones(2),))
