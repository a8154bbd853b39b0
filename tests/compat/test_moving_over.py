"""Scripts written for iree-turbine run unchanged."""

from __future__ import annotations

import copy
import importlib

import iree.turbine.aot as aot
import pytest
import torch
from iree.compiler.passmanager import PassManager
from iree.turbine.aot.support import procedural
from iree.turbine.runtime import Device, Launchable
from iree.turbine.runtime.op_reg import CustomOp, def_library
from iree.turbine.support.conversions import dtype_to_element_type
from iree.turbine.support.ir_imports import Context, Module
from iree.turbine.transforms.quantization.mm_group_quant import MMGroupQuantRewriterPass
from torch import Tensor, nn
from torch.export import Dim

from turbine import errors
from turbine.compiler import host
from turbine.lower.emission import TargetQuery

X = torch.ones(3, 4)


# Parameters


def test_parameters_without_a_scope_are_in_the_scope_model() -> None:
    model = nn.Linear(4, 2)
    aot.externalize_module_parameters(model)
    text = str(aot.export(model, args=(X,)).mlir_module)
    assert '#flow.parameter.named<"model"::"weight">' in text


def test_globals_without_a_scope_are_in_the_scope_model() -> None:
    marked = torch.ones(2)
    aot.ExternalTensorTrait(external_scope="", external_name="marked").set(marked)

    class Module(aot.CompiledModule):
        one = aot.export_global(marked)
        two = aot.export_global(torch.ones(2), external=True, external_scope="")

    text = str(aot.CompiledModule.get_mlir_module(Module()))
    assert '#flow.parameter.named<"model"::"marked">' in text
    assert '#flow.parameter.named<"model"::"two">' in text


# Programs


def test_private_programs_take_list_elements_as_arguments() -> None:
    builder = aot.FxProgramsBuilder(nn.Linear(4, 2))

    @builder.export_program(args=([X, X],), kwargs={"scale": torch.ones(3, 1)})
    def _compute(module, inputs, *, scale):
        return module(inputs[0] - inputs[1]) * scale

    class Module(aot.CompiledModule):
        _program = _compute

        def flat(self, a=aot.AbstractTensor(3, 4), scale=aot.AbstractTensor(3, 1)):
            return self._program(a, a, scale=scale)

        def nested(self, a=aot.AbstractTensor(3, 4), scale=aot.AbstractTensor(3, 1)):
            return self._program([a, a], scale=scale)

    artifact = aot.export(Module).compile()
    expected = builder.root_module.bias.detach().expand(3, 2) * 2
    for call in (artifact.flat, artifact.nested):
        torch.testing.assert_close(call(X, torch.full((3, 1), 2.0)), expected)
    assert set(artifact.functions) == {"flat", "nested"}


def test_fx_programs_have_targets() -> None:
    builder = aot.FxProgramsBuilder(nn.Linear(4, 2))

    @builder.export_program(args=(X,), arg_device={0: aot.DeviceAffinity(1)})
    def run(module, x):
        return module(x)

    @builder.export_program(args=(X,))
    def _inner(module, x):
        return module(x)

    named = builder.programs["run"]
    assert named.target is run
    assert named.graph_signature is run.graph_signature
    assert copy.copy(named).target is run
    assert "@__device_1" in str(aot.export(named).mlir_module)
    assert set(aot.export(builder).entry_points) == {"run"}


# Symbolic shapes


class Repeat(nn.Module):
    """Sizes that are expressions of two others, and one that no affine map has."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        twice = torch.cat([x, x])
        return twice[:, None] * y[None, :] + twice.sum() * torch.ones(max(x.shape[0], 3)).sum()


SIZES = {"x": {0: Dim("n", min=2, max=8)}, "y": {0: Dim("m", min=2, max=64)}}


def test_shape_expressions_are_imported_on_request() -> None:
    example = (torch.ones(4), torch.ones(5))
    plain = aot.export(Repeat(), args=example, dynamic_shapes=SIZES)
    assert "torch.symbolic_int" not in str(plain.mlir_module)
    output = aot.export(
        Repeat(), args=example, dynamic_shapes=SIZES, import_symbolic_shape_expressions=True
    )
    text = str(output.mlir_module)
    assert text.count("torch.symbolic_int") == 2
    assert "min_val = 2, max_val = 8" in text
    assert "affine_map<()[s0] -> (s0 * 2)>" in text
    artifact = output.compile()
    x, y = torch.rand(7), torch.rand(9)
    torch.testing.assert_close(artifact(x, y), Repeat()(x, y))
    again = output.lowered_anew(TargetQuery(host.default_target))
    assert "torch.symbolic_int" in str(again.module)


def test_shape_expressions_are_an_option_of_a_class() -> None:
    program = torch.export.export(nn.ReLU(), (X,), dynamic_shapes=({0: Dim("n")},))

    def count(wanted: bool) -> int:
        options = aot.ModuleBuilderOptions(import_symbolic_shape_expressions=wanted)
        made = aot.CompiledModule.create_from_dict("Module", {"run": program}, options=options)
        return str(aot.export(made).mlir_module).count("torch.bind_symbolic_shape")

    assert (count(False), count(True)) == (0, 2)


# Globals


def test_declared_globals_may_be_used_in_signatures() -> None:
    head = nn.Linear(4, 2)

    class Module(aot.CompiledModule):
        params = aot.export_parameters(head, mutable=True)
        step = aot.export_global(aot.AbstractIndex, mutable=True)

        def read(self):
            return self.params["weight"]

        def set_weight(self, weight=aot.abstractify(params["weight"])):
            self.params["weight"] = weight

        def set_all(self, new=aot.abstractify(params), step=aot.abstractify(step)):
            self.params = new
            self.step = step

    artifact = aot.export(Module).compile()
    assert torch.equal(artifact.read(), head.weight)
    artifact.set_weight(torch.ones(2, 4))
    assert torch.equal(artifact.read(), torch.ones(2, 4))
    artifact.set_all({"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}, 3)
    assert torch.equal(artifact.read(), torch.zeros(2, 4))


def test_a_module_without_procedures_is_exported() -> None:
    class Module(aot.CompiledModule):
        weights = aot.export_global(torch.ones(2))

    output = aot.export(Module)
    assert "util.global private @weights" in str(output.mlir_module)
    assert not output.entry_points


# Modules


def test_an_exported_module_is_an_op() -> None:
    output = aot.export(nn.Linear(4, 2), args=(X,))
    op = output.mlir_module
    assert op.verify()
    assert op.get_asm(enable_debug_info=True).count("loc(") > 0
    PassManager.parse("builtin.module(func.func(canonicalize))", context=op.context).run(op)
    names = [child.operation.name for child in op.regions[0].blocks[0]]
    assert names == ["util.global", "util.global", "func.func"]


@pytest.mark.parametrize("root", ["iree.turbine", "shark_turbine"])
def test_modules_do_not_shadow_functions_of_the_same_name(root: str) -> None:
    ops = importlib.import_module(f"{root}.ops")
    module = importlib.import_module(f"{root}.ops.insert_slice")
    assert ops.insert_slice is module.insert_slice
    filled = module.insert_slice(torch.ones(2), torch.zeros(4), [0], [2])
    assert filled.tolist() == [1, 0, 1, 0]
    builtins = importlib.import_module(f"{root}.aot.builtins")
    jittable = importlib.import_module(f"{root}.aot.builtins.jittable")
    assert builtins.jittable is jittable.jittable is aot.jittable


def test_procedure_values_have_the_iree_turbine_types() -> None:
    seen = []

    class Module(aot.CompiledModule):
        def run(self, x=aot.AbstractTensor(2), n=aot.AbstractIndex):
            seen.extend([x, n])

    aot.CompiledModule.get_info(Module())
    assert isinstance(seen[0], procedural.IrImmediateTensor)
    assert isinstance(seen[1], procedural.IrImmediateScalar)
    assert isinstance(aot.AbstractIndex, procedural.AbstractTypedef)
    assert isinstance(aot.AbstractTensor(2), procedural.AbstractTypedef)
    assert isinstance(aot.export_global(X), procedural.GlobalsDef)


# Errors


def export_twice() -> None:
    builder = aot.FxProgramsBuilder(nn.Identity())
    for _ in range(2):
        builder.export_program(lambda module, x: module(x), args=(X,), name="run")


def declare_without_a_type() -> None:
    aot.export(aot.CompiledModule.create_from_dict("Module", {"run": lambda self, x: x}))


def read_a_blob() -> None:
    builder = aot.ParameterArchiveBuilder()
    builder.add_blob("blob", b"123")
    aot.ParameterArchiveEntry(builder._entries["blob"]).as_tensor()


def export_an_unknown_op() -> None:
    class Model(nn.Module):
        def forward(self, x):
            return torch.special.airy_ai(x)

    aot.export(Model(), args=(X,)).verify()


def compile_what_is_no_code() -> None:
    Launchable.jit_compile("func.func @main(")(X)


def open_a_device() -> None:
    Device("no-such-driver")


def select_an_int() -> None:
    class Count(CustomOp):
        signature = "count_@UNIQUE@(Tensor x, int n) -> ()"

        def select(self, ksel):
            ksel.arg_tensor(0)
            ksel.arg_int(1)
            ksel.return_int()

        def generate(self, ksel, kb):
            kb.yield_results(kb.arg_bindings[0])

    CustomOp.register(library=def_library("moving_over"))(Count)(X, 1)


@pytest.mark.parametrize(
    ("act", "caught"),
    [
        (export_twice, ValueError),
        (declare_without_a_type, TypeError),
        (read_a_blob, ValueError),
        (export_an_unknown_op, NotImplementedError),
        (compile_what_is_no_code, RuntimeError),
        (open_a_device, ValueError),
        (select_an_int, NotImplementedError),
        (lambda: dtype_to_element_type(torch.bits8), TypeError),
        (lambda: aot.ImportPhase.parse("nowhere"), ValueError),
    ],
)
def test_errors_are_caught_by_iree_turbine_handlers(act, caught) -> None:
    with pytest.raises(caught) as raised:
        act()
    assert isinstance(raised.value, errors.TurbineError)


# Passes

LAYER = """
module {
  util.global private @weight WEIGHT : tensor<64x256xf32>
  INITIALIZER
  func.func @main(%x: !torch.vtensor<[4,256],f32>) -> !torch.vtensor<[4,64],f32> {
    %w = util.global.load @weight : tensor<64x256xf32>
    %t = torch_c.from_builtin_tensor %w : tensor<64x256xf32> -> !torch.vtensor<[64,256],f32>
    %0 = torch.constant.int 0
    %1 = torch.constant.int 1
    %p = torch.aten.transpose.int %t, %0, %1 : !torch.vtensor<[64,256],f32>, !torch.int, !torch.int
      -> !torch.vtensor<[256,64],f32>
    %r = torch.aten.mm %x, %p : !torch.vtensor<[4,256],f32>, !torch.vtensor<[256,64],f32>
      -> !torch.vtensor<[4,64],f32>
    return %r : !torch.vtensor<[4,64],f32>
  }
}
"""
STORE = """util.initializer {
    %c = arith.constant dense<0.0> : tensor<64x256xf32>
    util.global.store %c, @weight : tensor<64x256xf32>
    util.return
  }"""


def quantize(weight: str, initializer: str = "") -> str:
    text = LAYER.replace("WEIGHT", weight).replace("INITIALIZER", initializer)
    with Context():
        module = Module.parse(text)
    MMGroupQuantRewriterPass(module.operation).run()
    assert module.operation.verify()
    return str(module)


def test_weights_without_an_initial_value_are_quantized() -> None:
    text = quantize("")
    assert "util.global private @weight.packed : tensor<64x2x64xi8>" in text
    assert "util.global private @weight.scales : tensor<64x2xf32>" in text
    assert "@weight.packed = #util.uninitialized : " in quantize("= #util.uninitialized")


def test_a_weight_that_an_initializer_computes_is_not_quantized() -> None:
    with pytest.raises(errors.TransformError, match="no linear layer"):
        quantize("", STORE)
