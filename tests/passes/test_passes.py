"""Transforms of IR: what they compute, what they refuse, and that weights follow them."""

from __future__ import annotations

import copy
import doctest
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import iree.runtime
import numpy
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import turbine
from turbine import errors
from turbine.aot import (
    AbstractTensor,
    CompiledModule,
    ExportOutput,
    export_parameters,
    jittable,
)
from turbine.cli.main import main
from turbine.compat.add_metadata import AddMetadataPass
from turbine.compat.mm_group_quant import MMGroupQuantRewriterPass
from turbine.compat.rename_parameters import RenameParametersPass
from turbine.compat.rewriter import Pass as PeerPass
from turbine.mlir import context, matchers, parameters, rewrites, symbols
from turbine.mlir.ir import InsertionPoint, Module, Operation, Type, Value
from turbine.mlir.parameters import Parameter
from turbine.packed_weights import Grouping, quantize
from turbine.passes import (
    PASSES,
    AddMetadata,
    ExpandCustomOps,
    GroupQuantize,
    Merge,
    Merger,
    Pass,
    RenameParameters,
    run_passes,
)


@torch.library.custom_op("turbine_passes::scaled", mutates_args=())
def scaled(x: Tensor, factor: int) -> Tensor:
    return x * factor


@scaled.register_fake
def _(x: Tensor, factor: int) -> Tensor:
    return torch.empty_like(x)


class Layers(nn.Module):
    """Every form of linear layer: with and without bias, transposed or not, broadcast."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(40, 48)
        self.second = nn.Linear(48, 16, bias=False)
        self.plain = nn.Parameter(torch.randn(16, 24))
        self.shared = nn.Parameter(torch.randn(24, 8))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(torch.relu(self.first(x))) @ self.plain
        return torch.bmm(y, self.shared.expand(2, 24, 8))


@pytest.fixture(scope="module")
def layers() -> Layers:
    torch.manual_seed(0)
    return Layers().eval()


@pytest.fixture(scope="module")
def exported(layers: Layers) -> ExportOutput:
    return turbine.aot.export(layers, args=(X,))


X = torch.linspace(-1, 1, 2 * 5 * 40).reshape(2, 5, 40)

TWO = """
util.global private @a = #flow.parameter.named<"model"::"a"> : tensor<4xf32>
util.global private @b = #flow.parameter.named<"model"::"b"> : tensor<4xf32>
func.func private @helper() { return }
func.func @main() -> tensor<4xf32> {
  %0 = util.global.load @a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def parse(text: str = TWO) -> Module:
    return context.parse(text)


def refusal(passes: Sequence[Pass], text: str = TWO) -> str:
    """What the error says; the module must be as it was."""
    module = parse(text)
    before = str(module)
    with pytest.raises(errors.TransformError) as caught:
        run_passes(module, passes)
    assert str(module) == before
    return str(caught.value)


# Parameters


@pytest.mark.parametrize(
    ("scope", "key"), [("model", "c"), (None, "a"), ("", ""), ("a::b", "c::d"), ("s", "<é, {}>")]
)
def test_names_of_parameters_survive_odd_characters(scope: str | None, key: str) -> None:
    module = run_passes(parse(), [RenameParameters({"a": (scope, key)})])
    for form in (context.to_bytecode(module), context.to_text(module)):
        assert parameters.by_global(context.parse(form))["a"] == Parameter(scope, key)


@pytest.mark.parametrize("key", ['a"b', "a\\b", "a\nb"])
def test_names_that_do_not_survive_are_refused(key: str) -> None:
    assert refusal([RenameParameters({"a": key})]).startswith("a parameter cannot be named")


def test_settings_of_a_parameter_stay_when_it_is_renamed() -> None:
    text = 'util.global private @a = #flow.parameter.named<"m"::"a", {x = 1 : i64}> : tensor<4xf32>'
    module = parse(text)
    RenameParameters({"a": "b"}).run(module)
    assert '<"m"::"b", {x = 1 : i64}>' in str(module)


def test_names_can_be_swapped() -> None:
    module = run_passes(parse(), [RenameParameters({"a": "b", "b": "a"})])
    found = {name: parameter.key for name, parameter in parameters.by_global(module).items()}
    assert found == {"a": "b", "b": "a"}


@pytest.mark.parametrize(
    ("renames", "told"),
    [
        (
            {"a": "c", "b": "c"},
            "two parameters would be named 'model::c': 'model::a' and 'model::b'",
        ),
        ({"a": "b"}, "two parameters would be named 'model::b': 'model::a' and 'model::b'"),
        ({"aa": "b"}, "unknown parameter 'aa'; valid: "),
    ],
)
def test_renames_that_cannot_be_are_refused(renames: dict[Any, Any], told: str) -> None:
    assert refusal([RenameParameters(renames)]).startswith(told)


def test_a_callback_that_makes_names_equal_is_refused() -> None:
    assert "two parameters" in refusal([RenameParameters(callback=lambda scope, key: "same")])


@pytest.mark.run
def test_an_artifact_binds_its_weights_under_new_names(
    exported: ExportOutput, layers: Layers, tmp_path: Path
) -> None:
    renames = RenameParameters(callback=lambda scope, key: ("archive", f"net/{key}"))
    artifact = exported.transform(renames).compile(tmp_path / "renamed.turbine")
    assert {name.partition("/")[0] for name in artifact.weight_names} == {"net"}
    torch.testing.assert_close(artifact(X), layers(X))
    torch.testing.assert_close(turbine.load(tmp_path / "renamed.turbine")(X), layers(X))
    # Swapped weights of one shape would go unnoticed but for the numbers.
    assert '"model"::"plain"' in exported.text()


@pytest.mark.run
def test_an_artifact_binds_weights_of_two_scopes(exported: ExportOutput, layers: Layers) -> None:
    moved = exported.transform(RenameParameters({"plain": "elsewhere::plain"}))
    artifact = moved.compile()
    assert {weight["scope"] for weight in artifact.manifest["weights"]} == {"elsewhere", "model"}
    torch.testing.assert_close(artifact(X), layers(X))


def test_parameters_that_come_without_values_are_refused(exported: ExportOutput) -> None:
    text = 'util.global private @new = #flow.parameter.named<"model"::"new"> : tensor<4xf32>'
    with pytest.raises(errors.ParameterError, match="no value for parameter model::new"):
        exported.transform(Merge(parse(text)))


# Metadata


@pytest.mark.run
def test_metadata_is_found_at_run_time(tmp_path: Path) -> None:
    output = turbine.aot.export(nn.ReLU(), args=(torch.ones(2),))
    transformed = output.transform(AddMetadata("main", {"author": "me", "batch": 2}))
    transformed.compile(tmp_path / "x.vmfb")
    instance = iree.runtime.VmInstance()
    module = iree.runtime.VmModule.mmap(instance, str(tmp_path / "x.vmfb"))
    found = module.lookup_function("main").reflection
    assert {"author": "me", "batch": "2"}.items() <= found.items()


def test_metadata_for_a_function_that_is_not_there_is_refused() -> None:
    told = refusal([AddMetadata("mian", {"a": "b"})])
    assert told == "unknown function 'mian'; valid: main, helper"


# Merging


@pytest.mark.parametrize(
    ("source", "renames", "told"),
    [
        ("func.func @main() { return }", {}, "@main collides with @main: the target has that name"),
        (
            "func.func @f() { return }",
            {"f": "main"},
            "@f, renamed to @main, collides with @main: the target has that name",
        ),
        (
            "func.func @f() { return }\nfunc.func @g() { return }",
            {"f": "x", "g": "x"},
            "@g, renamed to @x, collides with @x: @f of the source has that name",
        ),
        ("func.func @f() { return }", {"g": "x"}, "unknown symbol to rename 'g'; valid: f"),
        (
            "util.global private @g = dense<0> : tensor<4xi32>",
            {"g": "a"},
            "@g cannot stand for @a: tensor<4xi32> is not tensor<4xf32>",
        ),
        (
            "util.global private mutable @g = dense<0.0> : tensor<4xf32>",
            {"g": "a"},
            "@g cannot stand for @a: mutable tensor<4xf32> is not tensor<4xf32>",
        ),
        (
            "func.func private @main() -> f32",
            {},
            "@main cannot stand for @main: () -> f32 is not () -> tensor<4xf32>",
        ),
    ],
)
def test_collisions_are_refused(source: str, renames: dict[str, str], told: str) -> None:
    assert refusal([Merge(parse(source), renames)]).startswith(told)


def test_a_merger_that_refuses_has_moved_nothing() -> None:
    target = parse()
    with target.context:
        source = context.parse(
            "func.func @f() { return } func.func @main() { return }", target.context
        )
    before = str(source), str(target)
    with pytest.raises(errors.TransformError):
        Merger(source, target).merge()
    assert (str(source), str(target)) == before


def test_a_merger_translates_names_and_swaps_them() -> None:
    target = parse()
    source = context.parse(
        """
        func.func private @helper() { return }
        func.func @f() { func.call @g() : () -> () return }
        func.func @g() { func.call @helper() : () -> () return }
        """,
        target.context,
    )
    merger = Merger(source, target, user_rename_map={"f": "g", "g": "f"})
    merger.merge()
    context.verify(target)
    assert [merger.translate_symbol(n) for n in ("f", "g", "helper")] == ["g", "f", "helper_1"]
    text = str(target)
    assert text.index("func.func @g()") < text.index("call @f()") < text.index("call @helper_1()")
    assert not list(source.body.operations)


def test_modules_that_disagree_about_an_attribute_are_refused() -> None:
    told = refusal(
        [Merge(parse("module attributes {util.x = 1} {}"))],
        f"module attributes {{util.x = 2}} {{{TWO}}}",
    )
    assert told.splitlines() == [
        "the modules disagree about util.x: 1 : i64 and 2 : i64",
        "  hint: remove util.x from one of them",
    ]


@pytest.mark.run
def test_a_merged_function_computes(tmp_path: Path) -> None:
    """The entry point calls what was merged in."""
    library = """
        func.func private @add_one(%x: tensor<4xf32>) -> tensor<4xf32> {
          %one = arith.constant dense<1.0> : tensor<4xf32>
          %y = arith.addf %x, %one : tensor<4xf32>
          return %y : tensor<4xf32>
        }
    """
    declared = """
        func.func private @add_one(%x: tensor<4xf32>) -> tensor<4xf32>
        func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
          %0 = func.call @add_one(%x) : (tensor<4xf32>) -> tensor<4xf32>
          return %0 : tensor<4xf32>
        }
    """
    module = run_passes(parse(library), [Merge(parse(declared))])
    assert run_module(module, tmp_path, numpy.arange(4, dtype=numpy.float32)).tolist() == [
        1,
        2,
        3,
        4,
    ]


def run_module(module: Module, folder: Path, *inputs: Any) -> Any:
    """Compile plain IR and call its function main."""
    from turbine import target
    from turbine.compiler import pipeline

    compiled = pipeline.compile_ir(context.to_bytecode(module), target.parse("cpu"))
    (folder / "module.vmfb").write_bytes(compiled.data)
    loaded = iree.runtime.load_vm_flatbuffer_file(str(folder / "module.vmfb"), driver="local-sync")
    return loaded.main(*inputs).to_host()


# Custom ops


class Custom(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = scaled(scaled(x, 3), 5) + 1
        return y


LIBRARY = """
util.global private @table = dense<2.0> : tensor<f32>
func.func private @twice(%n: i64) -> f32 {
  %table = util.global.load @table : tensor<f32>
  %two = tensor.extract %table[] : tensor<f32>
  %f = arith.sitofp %n : i64 to f32
  %g = arith.mulf %f, %two : f32
  return %g : f32
}
func.func @turbine_passes.scaled(%x: tensor<3x?xf32>, %n: i64) -> tensor<3x?xf32> {
  %c1 = arith.constant 1 : index
  %f = func.call @twice(%n) : (i64) -> f32
  %size = tensor.dim %x, %c1 : tensor<3x?xf32>
  %empty = tensor.empty(%size) : tensor<3x?xf32>
  %all = linalg.fill ins(%f : f32) outs(%empty : tensor<3x?xf32>) -> tensor<3x?xf32>
  %y = arith.mulf %x, %all : tensor<3x?xf32>
  return %y : tensor<3x?xf32>
}
"""


ITSELF = """
%i = torch_c.from_i64 %n
%z = torch.operator "torch.turbine_passes.scaled"(%i) : (!torch.int) -> !torch.int
"""


def multiplied(
    at: InsertionPoint, operands: Sequence[Value], results: Sequence[Type]
) -> list[Value]:
    product = Operation.create(
        "torch.aten.mul.Scalar", results=list(results), operands=list(operands)
    )
    return [product.result]


@pytest.fixture(scope="module")
def custom() -> ExportOutput:
    return turbine.aot.export(Custom(), args=(torch.ones(3, 4),))


@pytest.mark.run
@pytest.mark.parametrize(
    ("expand", "factor"),
    [
        (lambda: ExpandCustomOps({"turbine_passes.scaled": multiplied}), 15),
        (lambda: ExpandCustomOps(library=parse(LIBRARY)), 60),
    ],
)
def test_an_expanded_op_computes(
    custom: ExportOutput, expand: Callable[[], Pass], factor: int
) -> None:
    with pytest.raises(errors.UnsupportedOp):
        custom.compile()
    x = torch.arange(12.0).reshape(3, 4)
    torch.testing.assert_close(custom.transform(expand()).compile()(x), factor * x + 1)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("%n: i64) -> tensor", "%n: i64, %m: i64) -> tensor", "has 2 operands, its expansion"),
        ("tensor<3x?xf32>", "tensor<5x?xf32>", "cannot be used as a tensor<5x?xf32>"),
        ("%c1 = arith", "cf.br ^next\n^next:\n%c1 = arith", "is not one block"),
        (
            "%c1 = arith",
            f"{ITSELF}\n%c1 = arith",
            "uses torch.turbine_passes.scaled, which the library expands",
        ),
    ],
)
def test_a_library_that_does_not_fit_is_refused(
    custom: ExportOutput, old: str, new: str, told: str
) -> None:
    before = custom.text()
    with pytest.raises(errors.TransformError) as caught:
        custom.transform(ExpandCustomOps(library=parse(LIBRARY.replace(old, new))))
    assert told in str(caught.value)
    assert custom.text() == before


# Quantization


def pack(weight: Tensor, bits: int, group_size: int) -> tuple[NDArray[Any], NDArray[Any]]:
    array = weight.detach().numpy()
    outputs, columns = weight.shape
    return quantize(array, Grouping.fit(outputs, columns, bits, group_size), array.dtype)


def rounded(weight: Tensor, bits: int, group_size: int) -> Tensor:
    """What a weight is after it has been packed: read as the note on the format says."""
    rows, columns = weight.shape
    packed, scales = pack(weight, bits, group_size)
    q = packed if bits == 8 else numpy.concatenate([(packed << 4) >> 4, packed >> 4], axis=2)
    floats = q.astype(scales.dtype) * scales[:, :, None]
    return torch.from_numpy(floats.reshape(rows, -1)[:, :columns])


def with_rounded_weights(layers: Layers, bits: int, group_size: int) -> Layers:
    other = copy.deepcopy(layers)
    with torch.no_grad():
        for weight in (other.first.weight, other.second.weight):
            weight.copy_(rounded(weight, bits, group_size))
        for weight in (other.plain, other.shared):
            weight.copy_(rounded(weight.T, bits, group_size).T)
    return other


@pytest.mark.run
@pytest.mark.sweep(1)
@pytest.mark.parametrize(("weights", "bits"), [("external", 4), ("external", 8), ("global", 4)])
def test_quantized_layers_compute_with_rounded_weights(
    layers: Layers, weights: str, bits: int
) -> None:
    output = turbine.aot.export(layers, args=(X,), weights=weights)
    quantized = output.transform(GroupQuantize(bits, 16))
    assert quantized.text().count("flow.tensor.bitcast") == (4 if bits == 4 else 0)
    assert quantized.text().count("arith.extsi") == 4
    torch.testing.assert_close(quantized.compile()(X), with_rounded_weights(layers, bits, 16)(X))


def test_packed_weights_are_small(exported: ExportOutput) -> None:
    quantized = exported.transform(GroupQuantize(4, 16))
    plain, packed = (
        {w.name: w.tensor.nbytes for w in output.lowered.external}
        for output in (exported, quantized)
    )
    assert plain["second.weight"] == 16 * 48 * 4
    assert packed["second.weight.packed"] == 16 * 48 // 2
    assert packed["second.weight.scales"] == 16 * 3 * 4
    assert "second.weight" not in packed
    assert packed["first.bias"] == plain["first.bias"]


@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float16, numpy.float64])
def test_rounding_errs_by_half_a_step_inside_and_keeps_zero(dtype: Any) -> None:
    weight = torch.from_numpy(numpy.random.default_rng(0).normal(size=(3, 37)).astype(dtype))
    weight[0, :16] = 0
    weight[1, 4] = 0
    near = rounded(weight, 4, 16)
    _, scales = pack(weight, 4, 16)
    step = torch.from_numpy(numpy.repeat(numpy.abs(scales), 16, axis=1)[:, :37])
    # Half a step; more at the ends, which may lie beyond the integers: 9.5 becomes 7.
    assert ((near - weight).abs() <= 2.51 * step).all()
    assert ((near - weight).abs() <= 0.51 * step).float().mean() > 0.9
    assert (near[0, :16] == 0).all()
    assert near[1, 4] == 0


@pytest.mark.parametrize(("bits", "size"), [(4, 8), (8, 7)])
def test_a_row_shorter_than_a_group_is_one_group(bits: int, size: int) -> None:
    packed, scales = pack(torch.ones(2, 7), bits, 128)
    assert packed.shape == (2, 1, size * bits // 8)
    assert scales.shape == (2, 1)


def test_a_weight_that_is_also_a_table_stays(layers: Layers) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 16)
            self.inner = nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.inner(self.table(x)) @ self.table.weight.T
            return y

    output = turbine.aot.export(Tied().eval(), args=(torch.arange(3),))
    names = [w.name for w in output.transform(GroupQuantize(4, 16)).lowered.external]
    assert "table.weight" in names
    assert "inner.weight.packed" in names


LINEAR = """
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<8x32xf32>
func.func @main(%x: !torch.vtensor<[?,32],f32>) -> !torch.vtensor<[?,8],f32> {
  %none = torch.constant.none
  %0 = util.global.load @w : tensor<8x32xf32>
  %1 = torch_c.from_builtin_tensor %0 : tensor<8x32xf32> -> !torch.vtensor<[8,32],f32>
  %2 = torch.aten.linear %x, %1, %none
      : !torch.vtensor<[?,32],f32>, !torch.vtensor<[8,32],f32>, !torch.none
      -> !torch.vtensor<[?,8],f32>
  return %2 : !torch.vtensor<[?,8],f32>
}
"""


def test_linear_ops_are_quantized_along_their_inputs() -> None:
    module = run_passes(parse(LINEAR), [GroupQuantize(8, 16)])
    assert '"w.scales"> : tensor<8x2xf32>' in str(module)


LAYER = nn.Linear(40, 6)


class Passing(CompiledModule):
    """Weights that one function reads and another multiplies with."""

    params = export_parameters(LAYER)

    def main(self, x=AbstractTensor(None, 40)):  # type: ignore[no-untyped-def]
        return self.compute(x, self.params)

    @jittable
    def compute(x: Tensor, params: dict[str, Tensor]) -> Any:
        return torch.func.functional_call(LAYER, params, (x,))


@pytest.mark.run
def test_weights_are_followed_into_the_functions_they_are_passed_to() -> None:
    quantized = turbine.aot.export(Passing).transform(GroupQuantize(4, 16))
    names = {w.name for w in quantized.lowered.external}
    assert names == {"params.weight.packed", "params.weight.scales", "params.bias"}
    weight, x = rounded(LAYER.weight, 4, 16), torch.randn(3, 40)
    torch.testing.assert_close(quantized.compile()(x), x @ weight.T + LAYER.bias.detach())


CALLS = """
func.func private @f(%w: tensor<8x32xf32>, %x: !torch.vtensor<[2,32],f32>) {
  %none = torch.constant.none
  %0 = torch_c.from_builtin_tensor %w : tensor<8x32xf32> -> !torch.vtensor<[8,32],f32>
  %1 = torch.aten.linear %x, %0, %none
      : !torch.vtensor<[2,32],f32>, !torch.vtensor<[8,32],f32>, !torch.none
      -> !torch.vtensor<[2,8],f32>
  call @f(%w, %x) : (tensor<8x32xf32>, !torch.vtensor<[2,32],f32>) -> ()
  return
}
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<8x32xf32>
func.func @main(%x: !torch.vtensor<[2,32],f32>) {
  %0 = util.global.load @w : tensor<8x32xf32>
  call @f(%0, %x) : (tensor<8x32xf32>, !torch.vtensor<[2,32],f32>) -> ()
  return
}
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (TWO, "no linear layer to quantize"),
        (CALLS, "no linear layer to quantize"),
        (LINEAR.replace("x32x", "x0x").replace(",32]", ",0]"), "no linear layer to quantize"),
        (
            "util.global private @w.packed = dense<0> : tensor<1xi8>" + LINEAR,
            "cannot quantize w: there is a w.packed already",
        ),
        (
            LINEAR.replace('#flow.parameter.named<"model"::"w">', "dense<0x7FC00000>"),
            "cannot quantize w: it holds nan or inf",
        ),
    ],
)
def test_what_cannot_be_quantized_is_refused(text: str, told: str) -> None:
    assert refusal([GroupQuantize()], text).startswith(told)


# Matching and rewriting


def test_children_are_matched_in_loops_but_not_in_other_modules() -> None:
    module = parse(
        """
        func.func @f(%c: i1) { scf.if %c { func.call @g() : () -> () } return }
        func.func private @g() { return }
        module @inner { func.func @h() { return } }
        """
    )
    functions = matchers.match_children(module, matchers.FuncOpMatcher())
    calls: matchers.NamedOpMatcher[Any] = matchers.NamedOpMatcher("func.call")
    assert len(functions) == 2
    assert len(matchers.match_children(functions, calls)) == 1


def test_a_load_knows_its_global_and_sees_through_a_conversion() -> None:
    module = parse(LINEAR)
    linear: matchers.NamedOpMatcher[Any] = matchers.NamedOpMatcher("torch.aten.linear")
    (match,) = matchers.match_children(module, linear)
    load = matchers.GlobalLoadMatcher(matchers.globals_of(module))(match.op.operands[1])
    assert load is not None
    assert load.resolved_global is not None
    assert (load.global_ref, load.resolved_global.sym_name) == ("w", "w")
    assert matchers.GlobalLoadMatcher()(match.op.operands[0]) is None


def test_patterns_that_never_settle_are_refused() -> None:
    module = parse(LINEAR)

    def again(op: Operation) -> Sequence[Value] | None:
        return [op.clone().result] if op.name == "torch.constant.none" else None

    with pytest.raises(errors.TransformError, match="still apply after 100 rounds"):
        rewrites.rewrite(module, [again])


# Names of the peer


def test_passes_run_under_the_names_of_the_peer() -> None:
    module = parse()
    RenameParametersPass(
        module.operation, rename_map={("model", "a"): ("s", "x"), "absent": "y"}
    ).run()
    assert AddMetadataPass(module, {"n": 1}, "main").run() is module
    peer = PeerPass(module)
    other = context.parse("func.func private @helper() { return }", module.context)
    assert peer.merge_module(other.operation).translate_symbol("helper") == "helper_1"
    peer.cleanup()
    assert [symbols.symbol_name(match.op) for match in peer.funcs] == ["main"]
    assert parameters.by_global(module) == {"a": Parameter("s", "x")}


def test_group_quantization_under_the_name_of_the_peer() -> None:
    module = parse(LINEAR)
    MMGroupQuantRewriterPass(module.operation, group_size=32).run()
    assert "tensor<8x1x16xi8>" in str(module)


# The command line


Opt = Callable[..., tuple[int, str, str]]


@pytest.fixture
def opt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Opt:
    monkeypatch.chdir(tmp_path)
    Path("in.mlir").write_text(TWO)
    # A name says nothing about what is in a file.
    Path("bytecode.mlir").write_bytes(context.to_bytecode(parse()))

    def run(*words: str) -> tuple[int, str, str]:
        return (main(["opt", *words]), *capsys.readouterr())

    return run


@pytest.mark.parametrize("source", ["in.mlir", "bytecode.mlir"])
@pytest.mark.parametrize("target", ["out.mlir", "out.mlirbc"])
def test_opt_reads_and_writes_text_and_bytecode(opt: Opt, source: str, target: str) -> None:
    answer = opt(source, """--rename-parameters={"a":"c"}""", "-o", target)
    assert answer == (0, f"{target}\n", "")
    assert Path(target).read_bytes().startswith(b"ML\xefR") == (target == "out.mlirbc")
    found = parameters.by_global(context.read(Path(target)))
    assert found["a"] == Parameter("model", "c")


def test_opt_runs_passes_in_the_order_given(opt: Opt) -> None:
    first, second = """--rename-parameters={"a":"c"}""", """--rename-parameters={"c":"d"}"""
    code, printed, _ = opt("in.mlir", first, "--add-metadata", '{"main": {"k": "v"}}', second)
    assert code == 0
    assert '"model"::"d"' in printed
    assert 'iree.reflection = {k = "v"}' in printed
    assert opt("in.mlir", second, first)[0] == 1


def test_opt_merges_and_expands_from_files(opt: Opt, custom: ExportOutput) -> None:
    custom.save_mlir("custom.mlirbc")
    Path("library.mlir").write_text(LIBRARY)
    words = ("--merge", "in.mlir,main=other", "--expand-custom-ops", "library.mlir")
    code, printed, _ = opt("custom.mlirbc", *words)
    assert code == 0
    assert "torch.operator" not in printed
    assert "func.func @other()" in printed


BROKEN = "module {\n  func.func @f() {\n    foo.bar\n  }\n}"


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        (
            BROKEN,
            (),
            "error: the IR does not parse: Dialect `foo' not found for custom op 'foo.bar'",
        ),
        (BROKEN, (), "where: bad.mlir:3:5"),
        ("func.func @f() -> i32 { return }", (), "where: bad.mlir:1:25"),
        ("ML\u0000", (), "where: bad.mlir:1:1"),
        ("", (), "error: bad.mlir is empty"),
        (TWO, ("--rename-parameters", '{"a": "b"}'), "two parameters would be named 'model::b'"),
        (TWO, ("--rename-parameters", '{"a": "c", "a": "d"}'), "'a' is given twice"),
        (TWO, ("--rename-parameters", "{"), "--rename-parameters is not JSON"),
        (TWO, ("--rename-parameters", "[1]"), "--rename-parameters is not an object of strings"),
        (TWO, ("--add-metadata", '{"main": 1}'), "--add-metadata has no object of metadata for"),
        (TWO, ("--merge", "in.mlir"), "@main collides with @main: the target has that name"),
        (TWO, ("--merge", "in.mlir,main"), "--merge: 'main' is not OLD=NEW"),
        (TWO, ("--merge", "absent.mlir"), "cannot read absent.mlir: No such file"),
        (TWO, ("--group-quantize", "bits=3"), "cannot quantize to bits=3"),
        (TWO, ("--group-quantize", "size=3"), "unknown option of group-quantize 'size'; valid: "),
        (TWO, ("--group-quantize", "bits=four"), "bits='four' is not a number"),
        (TWO, ("--group-quantize", "group-size=0"), "cannot make groups of group_size=0"),
    ],
)
def test_opt_says_what_is_wrong_and_writes_nothing(
    opt: Opt, text: str, words: tuple[str, ...], told: str
) -> None:
    Path("bad.mlir").write_text(text)
    Path("out.mlir").write_text("old")
    before = sorted(Path().iterdir())
    code, printed, error = opt("bad.mlir", *words, "-o", "out.mlir")
    assert (code, printed) == (1, "")
    assert told in error
    assert Path("out.mlir").read_text() == "old"
    assert sorted(Path().iterdir()) == before


def test_every_pass_is_an_option_of_opt(opt: Opt) -> None:
    code, text, _ = opt("--help")
    assert code == 0
    assert [name for name in PASSES if f"--{name} " not in text] == []


def test_the_examples_in_docstrings_run() -> None:
    names = "base rename_parameters add_metadata merge".split()
    modules = [f"turbine.passes.{name}" for name in names]
    modules += ["turbine.mlir.matchers", "turbine.mlir.rewrites"]
    results = [doctest.testmod(importlib.import_module(name)) for name in modules]
    assert [result.failed for result in results] == [0] * len(modules)
    assert all(result.attempted for result in results)
