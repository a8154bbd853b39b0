"""Names of iree-turbine with another signature than ours work as before."""

from __future__ import annotations

import doctest
import importlib
import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import iree.runtime as iree
import numpy
import pytest
import torch
from iree.build import iree_build_main, load_build_module
from iree.runtime import HalElementType
from torch import Tensor, nn

import turbine
from turbine import config, dtypes, errors, target
from turbine.compat import conversions, debugging, decompositions, exceptions, tools
from turbine.compat.builder import Builder
from turbine.compat.functionalization import functorch_functionalize
from turbine.compat.invoke import invoke_vm_function
from turbine.compat.ir import InsertionPoint, IrType, Location
from turbine.compiler import pipeline
from turbine.mlir import context
from turbine.runtime import Device

# Dtypes


@pytest.mark.parametrize("row", dtypes.TABLE, ids=lambda row: row.name)
def test_dtype_tables_match_ours(row: dtypes.Dtype) -> None:
    with context.new_context():
        assert str(conversions.TORCH_DTYPE_TO_IREE_TYPE[row.torch]()) == row.mlir
    assert int(conversions.dtype_to_element_type(row.torch)) == row.hal
    assert conversions.torch_dtype_to_numpy(row.torch) == row.numpy
    signed = conversions.TORCH_DTYPE_TO_SIGNED_MLIR_TYPE_ASM[row.torch]
    assert conversions.SIGNED_MLIR_TYPE_ASM_TO_TORCH_DTYPE[signed] == row.torch


def test_quantized_dtypes_map_to_their_storage_types() -> None:
    with context.new_context():
        assert str(conversions.TORCH_DTYPE_TO_IREE_TYPE[torch.quint8]()) == "i8"
    assert conversions.TORCH_DTYPE_TO_IREE_TYPE_ASM[torch.qint8] == "i8"
    signed = conversions.TORCH_DTYPE_TO_SIGNED_MLIR_TYPE_ASM
    assert (signed[torch.qint8], signed[torch.quint8]) == ("si8", "ui8")
    assert conversions.SIGNED_MLIR_TYPE_ASM_TO_TORCH_DTYPE["ui8"] == torch.uint8
    write = conversions.torch_dtyped_shape_to_iree_format
    assert write([2], torch.qint8) == "2xi8"
    for dtype in (torch.qint8, torch.quint8):
        assert conversions.dtype_to_element_type(dtype) == HalElementType.OPAQUE_8


def test_signless_integers_map_to_signed_ones() -> None:
    assert conversions.IREE_TYPE_ASM_TO_TORCH_DTYPE["i8"] == torch.int8


def test_an_unsupported_dtype_is_an_error() -> None:
    with pytest.raises(exceptions.UnknownDTypeError):
        conversions.dtype_to_element_type(torch.bits8)


def test_shapes_are_formatted_as_in_iree() -> None:
    write = conversions.torch_dtyped_shape_to_iree_format
    assert write(torch.ones(2, 3, dtype=torch.bfloat16)) == "2x3xbf16"
    assert write((), torch.int64) == "i64"
    with pytest.raises(errors.ArgumentError, match="without a dtype"):
        write([1])


# Decompositions


def test_adding_default_decompositions_is_a_no_op() -> None:
    listed = decompositions.DEFAULT_DECOMPOSITIONS
    before = turbine.aot.current_aot_decompositions()
    with turbine.aot.extend_aot_decompositions(add_ops=listed) as table:
        assert listed
        assert table == before


def test_functionalization_removes_mutations() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        y[0].add_(1)
        return y

    graph = functorch_functionalize(f, torch.zeros(3, 2))
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert not any(target._schema.is_mutable for target in targets)
    assert torch.equal(graph(torch.zeros(5, 2)), f(torch.zeros(5, 2)))


# Builds

BUILD = """
import torch
from iree.build import entrypoint, iree_build_main
from iree.turbine.aot import ExportOutput, export
from iree.turbine.aot.build_actions import turbine_generate

def generate(size: int, *, kinds: str) -> RESULT:
    relu = export(torch.nn.ReLU(), args=(torch.ones(size),), module_name="relu")
    return relu if kinds == "one" else (relu, export(torch.nn.Tanh(), args=(torch.ones(size),)))

@entrypoint
def model():
    return turbine_generate(generate, 7, kinds="KINDS", name="model", out_of_process=PROCESS)

if __name__ == "__main__":
    iree_build_main()
"""


def build(folder: Path, result: str, kinds: str) -> dict[str, str]:
    """The files that a build in this process writes, or its error."""
    talk = io.StringIO()
    try:
        module = load_build_module(build_file(folder, result, kinds, out_of_process=False))
        iree_build_main(module, ["--output-dir", str(folder)], stdout=talk, stderr=talk)
    except (SystemExit, errors.ConfigError) as error:
        return {"error": f"{talk.getvalue()}{error}"}
    return written(folder)


def build_file(folder: Path, result: str, kinds: str, *, out_of_process: bool) -> Path:
    text = BUILD.replace("RESULT", result).replace("KINDS", kinds)
    (folder / "builds.py").write_text(text.replace("PROCESS", str(out_of_process)))
    return folder / "builds.py"


def written(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.rglob("*.mlir")}


def test_the_build_command_exports_out_of_process(tmp_path: Path) -> None:
    file = build_file(tmp_path, "ExportOutput", "one", out_of_process=True)
    command = [sys.executable, str(file), "--output-dir", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run(command, env=environment, capture_output=True, timeout=120, check=True)
    assert "module @relu" in written(tmp_path)["model.mlir"]


def test_the_build_command_writes_the_export(tmp_path: Path) -> None:
    files = build(tmp_path, "ExportOutput", "one")
    assert files.keys() == {"model.mlir"}
    assert "module @relu" in files["model.mlir"]
    assert "!torch.vtensor<[7],f32>" in files["model.mlir"]


def test_the_build_command_writes_a_file_for_each_export(tmp_path: Path) -> None:
    pair = "tuple[ExportOutput, ExportOutput]"
    files = build(tmp_path, pair, "two")
    assert files.keys() == {"model_0.mlir", "model_1.mlir"}
    assert "torch.aten.tanh" in files["model_1.mlir"]


@pytest.mark.parametrize(
    ("result", "told"),
    [("int", "annotated to return"), ("tuple[ExportOutput, ExportOutput]", "were announced")],
)
def test_the_build_command_rejects_other_results(tmp_path: Path, result: str, told: str) -> None:
    assert told in build(tmp_path, result, "one")["error"]


# Files for IREE's tools

TENSORS = [
    torch.arange(6.0).reshape(2, 3).t(),
    torch.tensor(1.5, dtype=torch.bfloat16),
    torch.tensor([True, False]),
    torch.ones(0, 3),
    torch.tensor([1 + 2j, 3 - 1j]).conj(),
    torch.tensor([1.5, -2.0]).to(torch.float8_e5m2),
    torch.ones(2, requires_grad=True),
    *(
        torch.tensor([1, 255]).to(d)
        for d in (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
    ),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{tuple(t.shape)} {t.dtype}")
def test_raw_tensors_round_trip(tmp_path: Path, tensor: Tensor) -> None:
    (text,) = tools.iree_tool_prepare_input_args([tensor], file_path_prefix=tmp_path / "x")
    assert text.endswith(f"=@{tmp_path / 'x0.bin'}")
    read = tools.read_raw_tensor(text)
    assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(read.to(torch.complex64), tensor.to(torch.complex64))


def test_a_raw_tensor_of_the_wrong_size_is_an_error(tmp_path: Path) -> None:
    tools.write_raw_tensor(torch.ones(2), tmp_path / "x.bin")
    with pytest.raises(errors.ArgumentError, match="has 8 bytes"):
        tools.read_raw_tensor(f"3xf32=@{tmp_path / 'x.bin'}")
    with pytest.raises(errors.ArgumentError, match="invalid description of a tensor"):
        tools.read_raw_tensor("3xf32")


def test_file_names_or_a_prefix_are_required(tmp_path: Path) -> None:
    with pytest.raises(errors.ArgumentError, match="one of file_paths and file_path_prefix"):
        tools.iree_tool_prepare_input_args([torch.ones(1)])
    with pytest.raises(errors.ArgumentError, match="1 tensors and 0 file_paths"):
        tools.iree_tool_prepare_input_args([torch.ones(1)], file_paths=[])


class Mixed(nn.Module):
    def forward(self, x: Tensor, mask: Tensor, bytes: Tensor) -> Tensor:
        return torch.where(mask, x, bytes.to(x.dtype))


@pytest.mark.run
def test_iree_run_module_reads_raw_tensors(tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 4)
    args = (x, torch.tensor([True, False, True, False]), torch.tensor([0, 200, 0, 255]).byte())
    turbine.aot.export(Mixed(), args=args).compile(tmp_path / "mixed.vmfb")
    inputs = tools.iree_tool_prepare_input_args(args, file_path_prefix=tmp_path / "arg")
    ended = subprocess.run(
        [
            Path(sys.executable).parent / "iree-run-module",
            "--device=local-sync",
            f"--module={tmp_path / 'mixed.vmfb'}",
            "--function=main",
            *(f"--input={text}" for text in inputs),
            f"--output=@{tmp_path / 'y.npy'}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert numpy.array_equal(numpy.load(tmp_path / "y.npy"), Mixed()(*args).numpy())


# Debugging, logging and IR


def test_debug_flags_are_read_from_their_option() -> None:
    with config.override(debug="log_level=info, -asserts,runtime_trace_dir=x", log_level="debug"):
        flags = debugging.flags_of(config.current())
    assert flags == debugging.DebugFlags(logging.DEBUG, False, "x")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("assert", "unknown debug flag 'assert'; valid: asserts"),
        ("log_level=loud", "log level 'loud'"),
    ],
)
def test_an_invalid_debug_flag_is_an_error(text: str, complaint: str) -> None:
    with pytest.raises(errors.ConfigError, match=complaint):
        debugging.DebugFlags.parse(text)


def test_traced_tensors_are_written_to_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debugging.flags, "runtime_trace_dir", str(tmp_path))
    debugging.trace_tensor_callback("x", torch.ones(2))
    assert numpy.load(tmp_path / "x.npy").tolist() == [1, 1]


MUL = """
func.func @main(%a: !torch.vtensor<[3],f32>, %b: !torch.vtensor<[3],f32>)
    -> !torch.vtensor<[3],f32> {
  %0 = torch.aten.mul.Tensor %a, %b
    : !torch.vtensor<[3],f32>, !torch.vtensor<[3],f32> -> !torch.vtensor<[3],f32>
  return %0 : !torch.vtensor<[3],f32>
}
"""


@pytest.mark.parametrize("name", ["main", "main$async"])
def test_sync_and_async_functions_are_invoked(name: str) -> None:
    device, x = Device("local-task"), torch.arange(3.0)
    code = pipeline.compile_ir(MUL.encode(), target.parse("cpu")).data
    module = iree.VmModule.copy_buffer(device.vm_instance, code)
    vm_context = iree.VmContext(device.vm_instance, [device.create_hal_module(), module])
    arguments, results = iree.VmVariantList(2), iree.VmVariantList(1)
    for tensor in (x, x):
        arguments.push_ref(device.import_torch_tensor(tensor))
    function, ticks = module.lookup_function(name), iter([1.0, 3.5])
    moved_on = invoke_vm_function(
        device, name != "main", vm_context, function, arguments, results, timer=lambda: next(ticks)
    )
    view = results.get_as_object(0, iree.HalBufferView)
    assert (moved_on, device.export_torch_tensor(view, x).tolist()) == (2.5, [0, 1, 4])


def test_debug_flags_set_log_levels() -> None:
    program = (
        "from turbine import config; config.set(debug='log_level=info')\n"
        "from turbine.compat.logging import aot_logger\n"
        "aot_logger.info('heard'); aot_logger.debug('not heard')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.stderr.count("heard") == 1
    assert ended.stderr.endswith("] heard\n")


def test_a_builder_calls_functions_over_builtin_types() -> None:
    module = context.parse(
        "func.func private @native(tensor<?x4xi8>) -> tensor<?x4xi8>\n"
        "func.func @main(%x: !torch.vtensor<[?,4],si8>) -> !torch.vtensor<[?,4],si8> {\n"
        "  return %x : !torch.vtensor<[?,4],si8>\n"
        "}"
    )
    block = module.body.operations[1].regions[0].blocks[0]
    builder = Builder(module.context)
    with module.context, Location.unknown(), InsertionPoint.at_block_begin(block):
        kind = IrType.parse("!torch.vtensor<[?,4],si8>")
        (result,) = builder.call_native("native", [kind], block.arguments[0])
        assert builder.get_tensor_dims(kind) == [None, 4]
        assert str(builder.get_tensor_element_type(kind)) == "i8"
    context.verify(module)
    assert result.type == kind
    assert "call @native" in str(module)


@pytest.mark.parametrize("name", ["conversions", "debugging", "kernel_tracing", "tools"])
def test_examples_in_the_documentation_run(name: str) -> None:
    module = importlib.import_module(f"turbine.compat.{name}")
    failed, tried = doctest.testmod(module)
    assert (failed, tried > 0) == (0, True)
