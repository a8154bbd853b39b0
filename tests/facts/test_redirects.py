"""Imports of iree-turbine names return our modules, or explain what replaced them."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import turbine
import turbine.aot
import turbine.capture.decompositions
from turbine import errors, redirects
from turbine.compat import conversions

processes = pytest.mark.sweep(1, "processes")

ROOT = Path(__file__).parents[2]
ROOTS = ("iree.turbine", "shark_turbine")
# What users of iree-turbine import, and from where, as far as Turbine has it.
NAMES = {
    "aot": """
        export ExportOutput current_aot_decompositions extend_aot_decompositions
        ExternalTensorTrait externalize_module_parameters save_module_parameters
        ParameterArchive ParameterArchiveBuilder ParameterArchiveEntry
        CompiledModule FxPrograms FxProgramsBuilder IREE abstractify jittable
        export_global export_global_tree export_parameters export_buffers
        AbstractTensor AbstractIndex AbstractF32 AbstractF64 AbstractBool AbstractI32 AbstractI64
        DeviceAffinity DeviceTensorTrait
        """,
    "aot.build_actions": "turbine_generate",
    "aot.builtins": """
        AbstractBool AbstractF32 AbstractF64 AbstractI32 AbstractI64 AbstractIndex AbstractTensor
        IREE abstractify export_buffers export_global export_global_tree export_parameters jittable
        """,
    "aot.builtins.globals": "export_buffers export_global export_global_tree export_parameters",
    "aot.builtins.jittable": "jittable",
    "aot.compiled_module": "CompiledModule ExportTargetDef ImportPhase ModuleBuilderOptions",
    "aot.fx_programs": "FxPrograms FxProgramsBuilder",
    "aot.passes": "functorch_functionalize",
    "aot.support.ir_utils": "GlobalAttributes ModuleBuilderOptions",
    "aot.support.procedural": """
        AbstractTensor AbstractTypedef Abstractifiable GlobalsDef IREEEmitter IrImmediateScalar
        IrImmediateTensor IrScalar IrTensor ProcedureTraceError abstractify
        """,
    "aot.decompositions": "current_aot_decompositions extend_aot_decompositions",
    "aot.exporter": "export ExportOutput",
    "aot.params": """
        externalize_module_parameters save_module_parameters
        ParameterArchive ParameterArchiveBuilder ParameterArchiveEntry
        """,
    "aot.tensor_traits": "DeviceAffinity DeviceTensorTrait ExternalTensorTrait",
    "dynamo.backends.base": "backend",
    "dynamo.backends.cpu": "backend",
    "dynamo.decompositions": "DEFAULT_DECOMPOSITIONS DEFAULT_DECOMPOSITION_TABLE",
    "dynamo.passes": "DEFAULT_DECOMPOSITIONS",
    "importers.ir": "Attribute Context InsertionPoint IrType Location Module Operation func_d",
    "kernel": "gen lang DEBUG is_debug",
    "kernel._support.indexing": "IndexExpr IndexSymbol",
    "kernel._support.tracing": "DebugLaunchContext AOTLaunchContext",
    "kernel.gen": "kernel thread TestLaunchContext",
    "kernel.lang": """
        sym IndexExpr IndexSymbol KernelBuffer InputBuffer OutputBuffer TemporaryBuffer Grid
        AddressSpace Index Vector bool i8 i16 i32 i64 index bf16 f16 f32 f64 f8e5m2 f8e4m3fn
        program_id to_dtype constant load store exp2 max sum dot for_loop broadcast
        broadcast_in_dim transpose is_debug
        """,
    "runtime": "Device Launchable get_vm_instance",
    "runtime.device": """
        Device DeviceState get_vm_instance lookup_device_from_torch get_device_from_torch
        """,
    "runtime.invoke": "invoke_vm_function",
    "runtime.launch": "Launchable",
    "runtime.tracing": "tracer RuntimeTracer DirectoryTracer",
    "runtime.op_reg": """
        CustomOp KernelSelection KernelBuilder FreeFuncKernelBuilder ArgDescriptor AttrArg IntArg
        TensorArg TensorListArg EmptyOptionalTensorArg def_library impl_helper
        """,
    "runtime.op_reg.base": "ALL_CUSTOM_OP_REGS CustomOp KernelSelection TensorArg def_library",
    "runtime.op_reg.eager": "eager_dispatch",
    "runtime.op_reg.impl_helper": """
        TemplateLoader ASMLoader StrFormatTemplateLoader JinjaTemplateLoader call_function
        """,
    "importers.utils": "TypeSubclassMap",
    "ops": "insert_slice",
    "ops.conv_fwd": "conv_2d_nhwc_fhwc generic_conv",
    "ops.insert_slice": "insert_slice",
    "ops.iree": """
        trace_tensor transfer_to_logical_device barrier_on_logical_device
        compute_barrier_start compute_barrier_end
        """,
    "support.conversions": """
        TORCH_DTYPE_TO_IREE_TYPE TORCH_DTYPE_TO_IREE_TYPE_ASM IREE_TYPE_ASM_TO_TORCH_DTYPE
        TORCH_DTYPE_TO_SIGNED_MLIR_TYPE_ASM SIGNED_MLIR_TYPE_ASM_TO_TORCH_DTYPE
        DTYPE_TO_ELEMENT_TYPE TORCH_DTYPE_TO_NUMPY MLIR_TYPE_ASM_TO_TORCH_DTYPE
        dtype_to_element_type torch_dtype_to_numpy torch_dtyped_shape_to_iree_format
        """,
    "support.debugging": """
        flags DebugFlags NDEBUG trace_tensor_callback trace_tensor_to_npy TraceTensorCallback
        """,
    "support.exceptions": """
        GeneralError UnsupportedTorchDeviceError UnsupportedTypeError ApiSequencingError
        UnknownDTypeError NoCurrentDeviceError MismatchedDeviceSetClearError
        """,
    "support.ir_imports": "IrType RankedTensorType arith_d builtin_d flow_d linalg_d tensor_d",
    "support.logging": "get_logger aot_logger runtime_logger DefaultFormatter",
    "support.tools": """
        iree_tool_format_cli_input_arg iree_tool_prepare_input_args
        write_raw_tensor read_raw_tensor
        """,
    "transforms.builder": "Builder",
    "transforms.general.add_metadata": "AddMetadataPass",
    "transforms.general.custom_op_expansion": "ExpandCustomOpsPass",
    "transforms.general.rename_parameters": "RenameParametersPass",
    "transforms.merger": "Merger",
    "transforms.quantization.mm_group_quant": "MMGroupQuantRewriterPass",
    "transforms.rewriter": """
        Pass pass_main OpMatcher NamedOpMatcher FuncOpMatcher GlobalOpMatcher GlobalLoadMatcher
        Transpose2DMatcher ConstantIntMatcher match_children OpMatchResult Builder Merger
        """,
}


def python(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that looks for modules in a folder, then in the repository."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# Where imports lead


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize(("old", "new"), redirects.MOVED.items())
def test_every_row_imports_our_module(root: str, old: str, new: str) -> None:
    assert importlib.import_module(f"{root}.{old}") is importlib.import_module(new)


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("old", NAMES)
def test_old_modules_have_their_public_names(root: str, old: str) -> None:
    module = importlib.import_module(f"{root}.{old}")
    assert [name for name in NAMES[old].split() if not hasattr(module, name)] == []


@pytest.mark.parametrize("ours", redirects.OLD_NAMES)
def test_our_modules_have_the_old_names(ours: str) -> None:
    module = importlib.import_module(ours)
    for name, home in redirects.OLD_NAMES[ours].items():
        assert name in dir(module)
        assert getattr(module, name) is getattr(importlib.import_module(home), name)
    with pytest.raises(AttributeError, match=f"module '{ours}' has no attribute 'nothing'"):
        _ = module.nothing


@processes
def test_our_modules_do_not_import_old_ones() -> None:
    program = (
        "import importlib, sys\n"
        f"for name in {list(redirects.OLD_NAMES)}:\n"
        "    importlib.import_module(name)\n"
        "    assert 'turbine.compat' not in sys.modules, name\n"
    )
    ended = python("-c", program)
    assert ended.returncode == 0, ended.stderr


def test_every_form_of_import_works() -> None:
    scope: dict[str, object] = {}
    exec(
        "import iree.turbine.aot\n"
        "import shark_turbine.aot as aot\n"
        "from iree.turbine import dynamo\n"
        "from shark_turbine.aot import export, params, decompositions\n"
        "from iree.turbine.support import conversions\n"
        "from iree.turbine.transforms.general import rename_parameters\n"
        "import iree.compiler.ir, iree.runtime\n",
        scope,
    )
    assert scope["aot"] is turbine.aot
    assert scope["export"] is turbine.aot.export
    assert scope["decompositions"] is turbine.capture.decompositions
    assert scope["conversions"] is conversions


def test_a_star_import_includes_submodules() -> None:
    scope: dict[str, object] = {}
    exec("from shark_turbine.aot import *", scope)
    assert {"export", "ParameterArchive", "decompositions"} <= scope.keys()


def test_modules_without_a_row_are_importable_under_the_old_package() -> None:
    assert importlib.import_module("iree.turbine.aot.output") is sys.modules["turbine.aot.output"]


def test_redirected_modules_keep_their_names() -> None:
    for old in redirects.MOVED:
        importlib.import_module(f"iree.turbine.{old}")
    for new in redirects.MOVED.values():
        spec = sys.modules[new].__spec__
        assert spec is not None
        assert (sys.modules[new].__name__, spec.name) == (new, new)


def test_classes_pickle_under_new_names_and_unpickle_under_old_ones() -> None:
    peer = importlib.import_module("iree.turbine.aot.tensor_traits")
    text = pickle.dumps(peer.ExternalTensorTrait("a", "b"), protocol=0)
    assert b"turbine.capture.traits" in text
    old = text.replace(b"turbine.capture.traits", b"shark_turbine.aot.tensor_traits")
    assert pickle.loads(old) == turbine.aot.ExternalTensorTrait("a", "b")


def test_installation_is_idempotent() -> None:
    importlib.import_module("iree.turbine")
    before = list(sys.meta_path)
    redirects.install("iree.turbine")
    assert sys.meta_path == before


@processes
def test_redirects_work_in_a_new_process() -> None:
    program = (
        "from iree.turbine.support.conversions import TORCH_DTYPE_TO_IREE_TYPE\n"
        "import sys, turbine.compat.conversions as ours\n"
        "assert sys.modules['iree.turbine.support.conversions'] is ours\n"
        "assert 'turbine.aot' not in sys.modules\n"
    )
    ended = python("-c", program)
    assert ended.returncode == 0, ended.stderr


@processes
def test_a_real_package_earlier_on_the_path_takes_precedence(tmp_path: Path) -> None:
    theirs = tmp_path / "iree" / "turbine" / "aot"
    theirs.mkdir(parents=True)
    (theirs.parent / "__init__.py").touch()
    (theirs / "__init__.py").write_text("THEIRS = True")
    program = (
        "import shark_turbine.aot, iree.turbine.aot, turbine.aot, iree.runtime\n"
        "assert iree.turbine.aot.THEIRS\n"
        "assert shark_turbine.aot is turbine.aot\n"
    )
    ended = python("-c", program, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr


# Where they lead nowhere


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("old", redirects.ABSENT)
def test_a_removed_module_gives_the_reason(root: str, old: str) -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module(f"{root}.{old}")
    assert f"no module named '{root}.{old.partition('.')[0]}" in str(caught.value)
    assert redirects.ABSENT[old] in str(caught.value)


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("old", ["aot.support.utils", "aot.nothing", "kernel._support.context"])
def test_an_unknown_module_suggests_the_nearest(root: str, old: str) -> None:
    with pytest.raises(errors.UnknownModule, match=f"no module named '{root}.{old}'.*") as caught:
        importlib.import_module(f"{root}.{old}")
    assert "nearest: " in str(caught.value)


def test_a_submodule_of_a_removed_module_gives_its_reason() -> None:
    finder = redirects.Redirects("iree.turbine")
    with pytest.raises(errors.UnknownModule, match="iree-org/wave") as caught:
        finder.find_spec("iree.turbine.kernel.wave.compile", None)
    assert "bag of ops" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "nearest"),
    [("aot.parms", "aot.params"), ("importers.irr", "importers.ir"), ("dynama", "dynamo")],
)
def test_an_unknown_package_suggests_the_nearest(old: str, nearest: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=rf"'shark_turbine\.{old}'") as caught:
        importlib.import_module(f"shark_turbine.{old}")
    assert f"nearest: shark_turbine.{nearest}, " in str(caught.value)


def test_a_from_import_of_an_unknown_name_gives_the_reason() -> None:
    with pytest.raises(ImportError, match=r"no module named 'shark_turbine\.nothing'"):
        exec("from shark_turbine import nothing")


def test_rows_are_consistent() -> None:
    assert not redirects.MOVED.keys() & redirects.ABSENT.keys()


@pytest.mark.parametrize("old", redirects.MOVED)
def test_old_names_shadow_no_module(old: str) -> None:
    package, _, rest = old.partition(".")
    ours = redirects.MOVED.get(package, "turbine.compat")
    hidden = find_spec(f"{ours}.{rest.partition('.')[0]}") if rest else None
    assert hidden is None or hidden.name == redirects.MOVED[old]


# Programs


def test_a_pass_runs_as_a_program_under_its_old_path(tmp_path: Path) -> None:
    (tmp_path / "in.mlir").write_text("func.func @main() { return }")
    output = tmp_path / "out.mlir"
    words = (tmp_path / "in.mlir", "-o", output)
    module = "iree.turbine.transforms.general.rename_parameters"
    ended = python("-W", "error", "-m", module, *map(str, words))
    assert ended.returncode == 0, ended.stderr
    assert "@main" in output.read_text()


def test_the_old_package_runs_as_a_module() -> None:
    ended = python("-m", "turbine", "--version")
    assert (ended.returncode, ended.stdout) == (0, f"turbine {turbine.__version__}\n")


def test_the_backend_is_registered_under_its_old_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    backends = project["entry-points"]["torch_dynamo_backends"]
    assert dict.fromkeys(("turbine", "turbine_cpu", "iree_turbine"), "turbine.dynamo:backend") == (
        backends
    )


def test_the_iree_namespace_package_is_shared() -> None:
    assert not (ROOT / "iree" / "__init__.py").exists()
