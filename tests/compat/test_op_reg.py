"""CustomOp classes of iree-turbine are PyTorch ops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from iree.compiler.dialects import arith, flow, tensor
from iree.compiler.ir import IntegerType, RankedTensorType, StringAttr
from torch import nn

import turbine.aot
from turbine import aot, errors
from turbine.compat.custom_op_expansion import ExpandCustomOpsPass
from turbine.compat.op_reg import (
    ALL_CUSTOM_OP_REGS,
    AttrArg,
    CustomOp,
    FreeFuncKernelBuilder,
    KernelBuilder,
    KernelSelection,
    TensorArg,
    def_library,
    impl_helper,
)
from turbine.compat.op_reg.eager import eager_dispatch
from turbine.mlir import context
from turbine.ops.code_cache import CodeCache
from turbine.ops.pure_op import PureOp
from turbine.passes import ExpandCustomOps, Merge, run_passes

pytestmark = pytest.mark.run

programs = pytest.mark.sweep(2, "programs")
LIBRARY = def_library("op_reg_test")
OPS = torch.ops.op_reg_test  # type checkers take a class for itself, not for the op it becomes
FORMAT = impl_helper.StrFormatTemplateLoader(__name__, "op_reg_templates")
JINJA = impl_helper.JinjaTemplateLoader(__name__, "op_reg_templates")


@CustomOp.register(library=LIBRARY)
class add_to(CustomOp):
    signature = "add_to(Tensor a, Tensor(b!) total) -> ()"

    def select(self, ksel: KernelSelection) -> None:
        ksel.arg_tensor(0)
        ksel.arg_tensor(1, inplace_tied=True)

    def generate(self, ksel: KernelSelection, kb: KernelBuilder) -> None:
        kb.yield_results(arith.addf(*kb.arg_bindings))


@CustomOp.register(library=LIBRARY)
class add(CustomOp):
    signature = "add(Tensor a, Tensor b) -> (Tensor)"

    def select(self, ksel: KernelSelection) -> None:
        a, b = ksel.arg_tensor(0), ksel.arg_tensor(1)
        a.specialize_all_dims()
        b.specialize_all_dims()
        ksel.return_new_tensor(list(a.t.shape), a.t.dtype).specialize_all_dims()

    def generate(self, ksel: KernelSelection, kb: KernelBuilder) -> None:
        of = RankedTensorType(kb.arg_bindings[0].type)
        element = str(of.element_type)
        added = FORMAT.inline_template_function(
            kb, "add_format", f"add_{element}", tensor=str(of), element=element
        )
        kb.yield_results(*impl_helper.call_function(added, *kb.arg_bindings))


@CustomOp.register(library=LIBRARY)
class linear(CustomOp):
    signature = "linear(Tensor x, Tensor? bias, Tensor w) -> Tensor"

    def select(self, ksel: KernelSelection) -> None:
        x, w = ksel.arg_tensor(0), ksel.arg_tensor(2)
        x.specialize_dims(-1)
        w.specialize_all_dims()
        bias = ksel.arg_optional_tensor(1)
        if bias:
            bias.specialize_all_dims()
            ksel.variant = "biased"
        ksel.return_new_tensor([x.t.shape[0], w.t.shape[1]], x.t.dtype).specialize_dims(1)

    def generate(self, ksel: KernelSelection, kb: KernelBuilder) -> None:
        x, bias, w = (desc.mlir_type_asm if desc else None for desc in ksel.arg_descs)
        result = ksel.result_descs[0].mlir_type_asm
        assert bool(bias) == (ksel.variant == "biased")
        function = JINJA.inline_template_function(
            kb, "linear_jinja", "linear", x=x, w=w, bias=bias, result=result
        )
        x_value, bias_value, w_value = kb.arg_bindings
        kb.yield_results(*impl_helper.call_function(function, x_value, w_value, bias_value))


@CustomOp.register(library=LIBRARY)
class halves(CustomOp):
    signature = "halves(Tensor a, Tensor b, bool[2] wanted) -> (Tensor?, Tensor?)"

    def select(self, ksel: KernelSelection) -> None:
        tensors = [ksel.arg_tensor(0).t, ksel.arg_tensor(1).t]
        for one, wanted in zip(tensors, ksel.attr_list_bool(2).v, strict=True):
            ksel.maybe_return_tensor(one if wanted else None)

    def generate(self, ksel: KernelSelection, kb: KernelBuilder) -> None:
        pairs = zip(kb.arg_bindings, ksel.result_descs, strict=False)
        kb.yield_results(*[value for value, desc in pairs if desc])


@CustomOp.register(library=LIBRARY)
class total(CustomOp):
    signature = "total(Tensor[] parts, int first, int[] shifts, float factor=2.0) -> Tensor"

    def select(self, ksel: KernelSelection) -> None:
        parts = ksel.arg_tensor_list(0)
        ksel.arg_int(1)
        ksel.attr_list_int(2)
        ksel.attr_float(3)
        ksel.return_tensor(parts.ts[0])

    def generate(self, ksel: KernelSelection, kb: KernelBuilder) -> None:
        parts = kb.arg_value(0)
        summed = parts[0]
        for part in parts[1:]:
            summed = arith.addf(summed, part)
        number = sum(ksel.arg_descs[2].v) * ksel.arg_descs[3].v
        of = RankedTensorType(summed.type).element_type
        first = arith.sitofp(of, kb.arg_value(1))
        start = arith.addf(first, arith.constant(of, float(number)))
        size = tensor.dim(summed, kb.constant_index(0))
        kb.yield_results(arith.addf(summed, flow.TensorSplatOp(summed.type, start, [size]).result))


def expected_total(parts: list[torch.Tensor], first: int, shifts: list[int]) -> torch.Tensor:
    """What `total` means."""
    return torch.stack(parts).sum(0) + first + sum(shifts) * 2.0


@CustomOp.register(library=LIBRARY)
class printed(CustomOp):
    signature = "printed(str key, Tensor(a!) x) -> ()"

    def select(self, ksel: KernelSelection) -> None:
        ksel.attr_str(0)
        ksel.arg_tensor(1, inplace_tied=True)

    def generate(self, ksel: KernelSelection, kb: KernelBuilder) -> None:
        key, value = ksel.arg_descs[0], kb.arg_value(1)
        assert isinstance(key, AttrArg)
        dims = [tensor.dim(value, kb.constant_index(0))]
        flow.TensorTraceOp(StringAttr.get(key.v), [value], dims)
        kb.yield_results(value)


def registered(op: Any) -> CustomOp:
    """The CustomOp instance of an op."""
    return ALL_CUSTOM_OP_REGS[op.default.name().replace("::", ".")]


def kernels_of(op: Any) -> CodeCache[Any]:
    """What was compiled for an op so far."""
    declared = registered(op).declared
    assert isinstance(declared, PureOp)
    return cast(CodeCache[Any], declared.launcher.kernels)


def failing(
    select: Callable[[Any, KernelSelection], None],
    generate: Callable[[Any, KernelSelection, KernelBuilder], None] = lambda *_: None,
    taken: str = "Tensor x, Tensor y",
) -> Any:
    """An op with a fault."""
    signature = f"failing_@UNIQUE@({taken}) -> Tensor"
    methods = {"signature": signature, "select": select, "generate": generate}
    return CustomOp.register(library=LIBRARY)(type("failing", (CustomOp,), methods))


def pointwise(op: Any, ksel: KernelSelection) -> None:
    """Select two tensors and a result like the first."""
    x = ksel.arg_tensor(0)
    ksel.arg_tensor(1)
    ksel.return_tensor(x.t)


# Calls on tensors


def test_ops_are_called_like_pytorch_ops() -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    assert cast(Any, add) is OPS.add
    torch.testing.assert_close(OPS.add(x, y), x + y)
    assert OPS.add(x.to("meta"), y.to("meta")).shape == (3, 4)


def test_tied_arguments_are_mutated() -> None:
    x, old = torch.randn(5), torch.randn(5)
    new = old.clone()
    assert OPS.add_to(x, new) is None
    torch.testing.assert_close(new, x + old)


def test_mutating_ops_take_keyword_arguments() -> None:
    @CustomOp.register(library=LIBRARY)
    class fill_(CustomOp):
        signature = "fill_(Tensor(a!) x, *, float number) -> ()"

        def select(self, ksel: KernelSelection) -> None:
            ksel.arg_tensor(0, inplace_tied=True)
            ksel.attr_float(1)

        def generate(self, ksel: KernelSelection, kb: KernelBuilder) -> None:
            of = RankedTensorType(kb.arg_value(0).type)
            size = tensor.dim(kb.arg_value(0), kb.constant_index(0))
            start = arith.constant(of.element_type, ksel.arg_descs[1].v)
            kb.yield_results(flow.TensorSplatOp(of, start, [size]).result)

    x = torch.zeros(3)
    OPS.fill_(x, number=1.5)
    assert torch.equal(x, torch.full([3], 1.5))


@programs
def test_optional_tensors_may_be_omitted() -> None:
    x, w, bias = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    torch.testing.assert_close(OPS.linear(x, None, w), x @ w)
    torch.testing.assert_close(OPS.linear(x, bias, w), x @ w + bias)


@programs
@pytest.mark.parametrize("wanted", [[True, True], [True, False], [False, True]])
def test_results_may_be_none(wanted: list[bool]) -> None:
    given = [torch.randn(3), torch.randn(4)]
    for result, value, is_wanted in zip(OPS.halves(*given, wanted), given, wanted, strict=True):
        assert (result is not None) == is_wanted
        assert result is None or torch.equal(result, value)


def test_lists_and_numbers_are_passed_to_the_emission() -> None:
    parts = [torch.randn(6) for _ in range(3)]
    torch.testing.assert_close(OPS.total(parts, 3, [1, 2]), expected_total(parts, 3, [1, 2]))


def test_int_arguments_do_not_recompile() -> None:
    kernels = kernels_of(OPS.total)
    parts = [torch.randn(90) for _ in range(2)]
    OPS.total(parts, 50, [1])
    count = len(kernels)
    for first in (51, 52):
        torch.testing.assert_close(OPS.total(parts, first, [1]), expected_total(parts, first, [1]))
    assert len(kernels) == count


@programs
def test_dynamic_shapes_do_not_recompile_unless_specialized() -> None:
    kernels = kernels_of(OPS.linear)
    w = torch.randn(8, 9)
    OPS.linear(torch.randn(20, 8), None, w)
    count = len(kernels)
    OPS.linear(torch.randn(30, 8), None, w)
    assert len(kernels) == count
    OPS.linear(torch.randn(20, 7), None, torch.randn(7, 9))
    assert len(kernels) == count + 1


def test_string_arguments_are_constants(capfd: pytest.CaptureFixture[str]) -> None:
    OPS.printed("the key", torch.tensor([1.5]))
    assert "the key" in capfd.readouterr().err


def test_eager_execute_overrides_the_call_unless_it_declines() -> None:
    @CustomOp.register(library=LIBRARY)
    class viewed(CustomOp):
        signature = "viewed(Tensor x) -> Tensor"

        def select(self, ksel: KernelSelection) -> None:
            ksel.return_tensor(ksel.arg_tensor(0).t)

        def eager_execute(self, *args: Any) -> Any:
            return args[0].view(-1).view(args[0].shape) if args[0].ndim == 2 else NotImplemented

        def generate(self, ksel: KernelSelection, kb: KernelBuilder) -> None:
            kb.yield_results(arith.addf(kb.arg_value(0), kb.arg_value(0)))

    matrix, vector = torch.ones(2, 3), torch.ones(3)
    result = OPS.viewed(matrix)
    assert torch.equal(result, matrix)
    assert result.data_ptr() != matrix.data_ptr()
    assert torch.equal(OPS.viewed(vector), 2 * vector)
    assert torch.equal(OPS.viewed(vector), 2 * vector)


def test_eager_execute_may_mutate_arguments() -> None:
    @CustomOp.register(library=LIBRARY)
    class doubled_(CustomOp):
        signature = "doubled_(Tensor(a!) x) -> ()"

        def select(self, ksel: KernelSelection) -> None:
            ksel.arg_tensor(0, inplace_tied=True)

        def eager_execute(self, *args: Any) -> Any:
            args[0].mul_(2)

        def generate(self, ksel: KernelSelection, kb: KernelBuilder) -> None:
            kb.yield_results(kb.arg_value(0))

    x = torch.ones(3)
    OPS.doubled_(x)
    assert torch.equal(x, torch.full([3], 2.0))


def test_a_user_kernel_may_be_registered_for_a_dispatch_key() -> None:
    @CustomOp.register(library=LIBRARY, register_impl=False)
    class mine(CustomOp):
        signature = "mine(Tensor x) -> Tensor"

        def select(self, ksel: KernelSelection) -> None:
            ksel.return_tensor(ksel.arg_tensor(0).t)

        def generate(self, ksel: KernelSelection, kb: KernelBuilder) -> None:
            kb.yield_results(kb.arg_value(0))

    LIBRARY.impl("mine", lambda x: x + 7, "CPU")
    assert torch.equal(OPS.mine(torch.zeros(2)), torch.full([2], 7.0))


def test_selections_are_dispatched_to_their_op() -> None:
    x = torch.randn(3, 4)
    ksel = registered(OPS.add).make_selection([x, x])
    assert ksel.spec_key.startswith("op_reg_test.add::default(tensor[2:torch.float32]<[3, 4]>")
    torch.testing.assert_close(eager_dispatch(ksel), x + x)


# PyTorch's machinery


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (OPS.add, (torch.randn(3, 4), torch.randn(3, 4))),
        (OPS.add_to, (torch.randn(5), torch.randn(5))),
        (OPS.linear, (torch.randn(3, 4), torch.randn(5), torch.randn(4, 5))),
        (OPS.total, ([torch.randn(6), torch.randn(6)], 3, [1])),
        (OPS.halves, (torch.randn(3), torch.randn(4), [True, True])),
    ],
    ids=["add", "add_to", "linear", "total", "halves"],
)
def test_opcheck_passes(op: Any, args: tuple[Any, ...]) -> None:
    torch.library.opcheck(op.default, args)


class Model(nn.Module):
    """A model with ops of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = OPS.linear(x, None, self.weight).sum(1)
        written = hidden.clone()
        OPS.add_to(hidden, written)
        summed: torch.Tensor = OPS.total([hidden, written], x.shape[0], [1])
        return summed


def meaning(model: Model, x: torch.Tensor) -> torch.Tensor:
    """The model with PyTorch's own ops."""
    hidden = (x @ model.weight).sum(1)
    return expected_total([hidden, 2 * hidden], x.shape[0], [1])


def test_ops_compile_without_graph_breaks() -> None:
    model, x = Model(), torch.randn(5, 4)
    compiled = torch.compile(model, backend="turbine", fullgraph=True, dynamic=True)
    torch.testing.assert_close(compiled(x), meaning(model, x))
    more = torch.randn(7, 4)
    torch.testing.assert_close(compiled(more), meaning(model, more))


@programs
def test_ops_are_exported_with_dynamic_sizes() -> None:
    model = Model()
    rows = torch.export.Dim("rows", min=2)
    exported = turbine.aot.export(model, args=(torch.randn(5, 4),), dynamic_shapes={"x": {0: rows}})
    artifact = exported.compile()
    for count in (5, 11):
        x = torch.randn(count, 4)
        torch.testing.assert_close(artifact(x), meaning(model, x))


# Mistakes


def test_arguments_are_selected_once_with_the_declared_type() -> None:
    x = torch.ones(2)

    def twice(op: Any, ksel: KernelSelection) -> None:
        ksel.arg_tensor(0)
        ksel.arg_tensor(0)

    def left_out(op: Any, ksel: KernelSelection) -> None:
        ksel.return_tensor(ksel.arg_tensor(0).t)

    def wrong_kind(op: Any, ksel: KernelSelection) -> None:
        ksel.arg_int(1)

    def too_far(op: Any, ksel: KernelSelection) -> None:
        ksel.arg_tensor(2)

    def tied(op: Any, ksel: KernelSelection) -> None:
        ksel.arg_tensor(0, inplace_tied=True)

    messages = {
        twice: "argument 0, x, is requested twice",
        left_out: "argument 1, y, is not requested",
        wrong_kind: "argument 1, y, is a Tensor, but `select` requests an int",
        too_far: "requests argument 2, but the op takes 2",
        tied: r"argument 0, x, is tied in place\n.*Tensor\(a!\) x",
    }
    for select, message in messages.items():
        with pytest.raises(errors.CustomOpError, match=message):
            failing(select)(x, x)


def test_results_must_match_the_declaration() -> None:
    x = torch.ones(2)

    def integers(op: Any, ksel: KernelSelection, kb: KernelBuilder) -> None:
        of = RankedTensorType.get([2], IntegerType.get_signless(32))
        kb.yield_results(tensor.empty(of.shape, of.element_type))

    def nothing(op: Any, ksel: KernelSelection, kb: KernelBuilder) -> None:
        pass

    def too_many(op: Any, ksel: KernelSelection, kb: KernelBuilder) -> None:
        kb.yield_results(kb.arg_value(0), kb.arg_value(1))

    def again(op: Any, ksel: KernelSelection, kb: KernelBuilder) -> None:
        kb.yield_results(kb.arg_value(0))
        kb.yield_results(kb.arg_value(0))

    messages = {
        integers: r"result 0 is declared as tensor<\?xf32> and given as tensor<2xi32>",
        nothing: "yields no results",
        too_many: "yields 2 values, but `select` declares 1 results and 0 tied arguments",
        again: "results are yielded twice",
    }
    for generate, message in messages.items():
        with pytest.raises(errors.CustomOpError, match=message):
            failing(pointwise, generate)(x, x)


def test_an_error_in_generate_names_its_line() -> None:
    def broken(op: Any, ksel: KernelSelection, kb: KernelBuilder) -> None:
        raise ValueError("no such luck")

    with pytest.raises(errors.CustomOpError, match="ValueError: no such luck") as caught:
        failing(pointwise, broken)(torch.ones(2), torch.ones(2))
    assert caught.value.where is not None
    assert caught.value.where.startswith(__file__)


def test_an_argument_without_a_value_in_the_ir_is_named() -> None:
    def select(op: Any, ksel: KernelSelection) -> None:
        ksel.return_tensor(ksel.arg_tensor(0).t)
        ksel.attr_int(1)

    def generate(op: Any, ksel: KernelSelection, kb: KernelBuilder) -> None:
        kb.yield_results(kb.arg_value(1))

    with pytest.raises(errors.CustomOpError, match="argument 1 has no value in the IR"):
        failing(select, generate, "Tensor x, int k")(torch.ones(2), 3)


def test_template_errors_show_the_lines() -> None:
    def generate(op: Any, ksel: KernelSelection, kb: KernelBuilder) -> None:
        FORMAT.inline_template_function(kb, "broken", "f")

    with pytest.raises(RuntimeError, match=r"'broken'.*\n +1: THIS IS NO MLIR"):
        failing(pointwise, generate)(torch.ones(2), torch.ones(2))


def test_an_unknown_template_lists_the_valid_ones() -> None:
    with pytest.raises(errors.CustomOpError, match=r"unknown template 'ad'; valid: .*add_format"):
        FORMAT.render("ad")


def test_duplicate_names_are_made_unique_or_rejected() -> None:
    one, other = failing(pointwise), failing(pointwise)
    assert one.default.name() != other.default.name()
    with pytest.raises(errors.CustomOpError, match="op_reg_test::add exists already"):
        CustomOp.register(library="op_reg_test")(type(registered(OPS.add)))
    with pytest.raises(errors.CustomOpError, match="does not begin with a name"):
        CustomOp.register(type("bad", (type(registered(add)),), {"signature": "-> Tensor"}))


# IR


OPERATORS = """
func.func @main(%x: !torch.vtensor<[?,4],f32>, %w: !torch.vtensor<[4,5],f32>)
    -> !torch.vtensor<[?,5],f32> {
  %none = torch.constant.none
  %y = torch.operator "torch.op_reg_test.linear"(%x, %none, %w)
    : (!torch.vtensor<[?,4],f32>, !torch.none, !torch.vtensor<[4,5],f32>)
    -> !torch.vtensor<[?,5],f32>
  return %y : !torch.vtensor<[?,5],f32>
}
"""


def test_operators_in_ir_are_expanded() -> None:
    module = context.parse(OPERATORS)
    ExpandCustomOpsPass(module).run()
    context.verify(module)
    text = context.to_text(module)
    assert "torch.operator" not in text
    assert "linalg.matmul" in text
    assert text == context.to_text(run_passes(context.parse(OPERATORS), [ExpandCustomOps()]))


def test_a_program_that_declares_ops_expands_them(tmp_path: Path) -> None:
    program = tmp_path / "ops.py"
    program.write_text("""
import torch
from iree.turbine.runtime.op_reg import CustomOp, def_library, impl_helper

TEXT = impl_helper.ASMLoader(
    "func.func private @f(tensor<?x4xf32>, tensor<4x5xf32>) -> tensor<?x5xf32>")

@CustomOp.register(library=def_library("op_reg_file"))
class linear(CustomOp):
    signature = "linear(Tensor x, Tensor? none, Tensor w) -> Tensor"

    def select(self, ksel):
        x, _, w = ksel.arg_tensor(0), ksel.arg_optional_tensor(1), ksel.arg_tensor(2)
        x.specialize_dims(1)
        w.specialize_all_dims()
        ksel.return_tensor(torch.empty(x.t.shape[0], w.t.shape[1]))

    def generate(self, ksel, kb):
        function = TEXT.inline_template_function(kb, "any", "f")
        kb.yield_results(*impl_helper.call_function(function, *kb.arg_bindings))
""")
    module = context.parse(OPERATORS.replace("op_reg_test", "op_reg_file"))
    expanded = run_passes(module, [ExpandCustomOps.parse(str(program))])
    assert "call @f_" in context.to_text(expanded)


def test_instances_expand_merged_modules() -> None:
    procedure = {"run": lambda self, x=aot.AbstractTensor(2): x}
    instance = aot.CompiledModule.create_from_dict("Small", procedure)()
    module = aot.CompiledModule.get_mlir_module(instance)
    Merge(context.parse(OPERATORS)).run(module)
    assert "torch.operator" in context.to_text(module)
    aot.CompiledModule.expand_custom_ops(instance)
    assert "torch.operator" not in context.to_text(module)


def test_a_table_of_ops_expands_only_its_own() -> None:
    module = context.parse(OPERATORS)
    ExpandCustomOpsPass(module, {"op_reg_test.add": registered(OPS.add)}).run()
    assert "torch.operator" in context.to_text(module)


def test_specialized_sizes_must_be_static() -> None:
    text = OPERATORS.replace("[?,4]", "[?,?]")
    with pytest.raises(errors.CustomOpError, match=r"axis -1 .* known only at run time"):
        ExpandCustomOpsPass(context.parse(text)).run()


def test_mutating_operators_need_a_result_for_each_mutation() -> None:
    of = "!torch.vtensor<[3],f32>"
    text = f"""
    func.func @main(%x: {of}) -> {of} {{
      %key = torch.constant.str "key"
      torch.operator "torch.op_reg_test.printed"(%key, %x) : (!torch.str, {of}) -> ()
      %y = torch.operator "torch.op_reg_test.add_to"(%x, %x) : ({of}, {of}) -> {of}
      return %y : {of}
    }}"""
    module = context.parse(text)
    ExpandCustomOpsPass(module).run()
    assert 'flow.tensor.trace "key"' in context.to_text(module)
    assert "arith.addf" in context.to_text(module)
    lost = text.replace(f"-> {of}\n      return %y", "-> ()\n      return %x").replace("%y = ", "")
    with pytest.raises(errors.TransformError, match="no result for the new value"):
        ExpandCustomOpsPass(context.parse(lost)).run()


def test_kernels_are_built_as_standalone_functions() -> None:
    op = registered(OPS.add)
    kb = FreeFuncKernelBuilder.create_module(op.make_selection([torch.ones(2), torch.ones(2)]))
    with kb.context, kb.ip, kb.ip.block.owner.location:
        op.generate(kb.ksel, kb)
    context.verify(kb.module)
    assert "func.func @add(%arg0: tensor<2xf32>" in context.to_text(kb.module)


def test_descriptors_have_static_sizes_and_mlir_types() -> None:
    arg = TensorArg(torch.empty(2, 3, dtype=torch.int8))
    arg.specialize_dims(-1)
    assert (arg.spec_dims, arg.mlir_type_asm) == ([None, 3], "tensor<?x3xi8>")
