"""Launchable: programs without a signature, arguments, outputs, threads and forks."""

from __future__ import annotations

import doctest
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import iree.runtime as iree
import numpy
import pytest
import torch

import turbine
from tests.forked import in_child
from turbine import errors, target
from turbine.compiler import pipeline
from turbine.mlir import context
from turbine.runtime import Device, Launchable, get_vm_instance, launch

X = torch.arange(6.0).reshape(2, 3)
MUL = """
func.func @main(%a: tensor<2x3xf32>, %b: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %0 = arith.mulf %a, %b : tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}
"""
TORCH_MUL = """
func.func @main(%a: !torch.vtensor<[?,3],f32>, %b: !torch.vtensor<[?,3],f32>)
    -> !torch.vtensor<[?,3],f32> {
  %0 = torch.aten.mul.Tensor %a, %b
    : !torch.vtensor<[?,3],f32>, !torch.vtensor<[?,3],f32> -> !torch.vtensor<[?,3],f32>
  return %0 : !torch.vtensor<[?,3],f32>
}
"""
NUMBERS = """
func.func @main(%i: i32, %l: i64, %f: f32, %d: f64) -> (f64, i64, f32, i32) {
  return %d, %l, %f, %i : f64, i64, f32, i32
}
"""
COUNTER = """
util.global private mutable @count = dense<0.0> : tensor<2xf32>
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %old = util.global.load @count : tensor<2xf32>
  %new = arith.addf %old, %x : tensor<2xf32>
  util.global.store %new, @count : tensor<2xf32>
  return %new : tensor<2xf32>
}
"""
WEIGHT = """
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<3xf32>
func.func @main() -> tensor<3xf32> {
  %w = util.global.load @w : tensor<3xf32>
  return %w : tensor<3xf32>
}
"""
STORAGE = """
func.func @main(%out: tensor<2x3xf32> {iree.abi.output = 0 : index}, %a: tensor<2x3xf32>)
    -> tensor<2x3xf32> {
  %0 = arith.addf %a, %a : tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}
"""
OVERWRITE = """
func.func @main(%a: !torch.vtensor<[2,3],f32>, %out: !torch.tensor<[2,3],f32>) {
  %0 = torch.aten.mul.Tensor %a, %a
    : !torch.vtensor<[2,3],f32>, !torch.vtensor<[2,3],f32> -> !torch.vtensor<[2,3],f32>
  torch.overwrite.tensor.contents %0 overwrites %out
    : !torch.vtensor<[2,3],f32>, !torch.tensor<[2,3],f32>
  return
}
"""
SEVERAL = """
func.func @pair(%x: tensor<3xi8>, %s: tensor<3xf32>) -> (tensor<3xi8>, i64, tensor<3xf32>) {
  %n = arith.constant 7 : i64
  return %x, %n, %s : tensor<3xi8>, i64, tensor<3xf32>
}
func.func @nothing(%x: tensor<3xi8>) {
  return
}
"""


@cache
def code(source: str) -> bytes:
    return pipeline.compile_ir(source.encode(), target.parse("cpu")).data


@cache
def shared(source: str, entry_point: str = "main") -> Launchable:
    """A program for several tests; one that keeps state is for none of them."""
    return Launchable.from_bytes(code(source), entry_point=entry_point)


def observed(source: str) -> tuple[Launchable, list[str]]:
    """A program, and the devices it is loaded for."""
    seen: list[str] = []
    module = iree.VmModule.copy_buffer(get_vm_instance(), code(source))

    def load(device: Device) -> Any:
        seen.append(device.uri)
        return module

    return Launchable.from_vm_module(load), seen


# Where programs come from


def sources(folder: Path) -> dict[str, Callable[[], Launchable]]:
    file = folder / "mul.vmfb"
    file.write_bytes(code(MUL))
    bytecode = context.to_bytecode(context.parse(MUL))
    module = iree.VmModule.copy_buffer(get_vm_instance(), code(MUL))
    filled = folder / "filled"
    Launchable.jit_compile(MUL, file_cache_dir=filled).preload("cpu")
    return {
        "text": lambda: Launchable.jit_compile(MUL),
        "bytes of text": lambda: Launchable.jit_compile(MUL.encode()),
        "bytecode": lambda: Launchable.jit_compile(bytecode),
        "torch": lambda: Launchable.jit_compile(TORCH_MUL),
        "folder": lambda: Launchable.jit_compile(MUL, file_cache_dir=folder / "new" / "folder"),
        "folder only": lambda: Launchable.from_file_cache_only(filled),
        "file": lambda: Launchable.from_file(file),
        "bytes": lambda: Launchable.from_bytes(code(MUL)),
        "module": lambda: Launchable.from_vm_module(lambda device: module),
        "loader": lambda: Launchable(lambda device: ("main", module), (), False),
    }


@pytest.mark.parametrize("uri", [None, "cpu", "local-sync", "local-task"])
def test_programs_run_from_every_kind_of_source(tmp_path: Path, uri: str | None) -> None:
    for name, make in sources(tmp_path).items():
        assert torch.equal(make()(X, X + 1, device=uri), X * (X + 1)), name


def test_the_docstring_example_runs() -> None:
    assert doctest.testmod(launch).failed == 0


@pytest.mark.parametrize("entry_point", ["main$async", "main"])
@pytest.mark.parametrize("source", [MUL, TORCH_MUL], ids=["builtin", "torch"])
def test_sync_and_async_entry_points_return_the_same(source: str, entry_point: str) -> None:
    assert torch.equal(shared(source, entry_point)(X, X), X * X)


def test_async_only_functions_are_awaited() -> None:
    from turbine.compiler import host, invoke, session

    flags = (*host.resolve(target.parse("cpu")).flags, "--iree-execution-model=async-external")
    outcome = invoke.run(session.Request(MUL.encode(), flags))
    assert outcome.data is not None
    launchable = Launchable.from_bytes(outcome.data)
    for _ in range(3):
        assert torch.equal(launchable(X, X), X * X)


def test_a_cache_folder_is_not_used_for_another_source(tmp_path: Path) -> None:
    add = MUL.replace("mulf", "addf")
    assert torch.equal(Launchable.jit_compile(MUL, file_cache_dir=tmp_path)(X, X), X * X)
    assert torch.equal(Launchable.jit_compile(add, file_cache_dir=tmp_path)(X, X), X + X)
    assert torch.equal(Launchable.from_file_cache_only(tmp_path)(X, X), X + X)


def test_a_populated_cache_folder_needs_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Launchable.jit_compile(MUL, file_cache_dir=tmp_path).preload("local-sync")
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    filled = Launchable.jit_compile(MUL, file_cache_dir=tmp_path)
    assert torch.equal(filled(X, X, device="local-sync"), X * X)
    with pytest.raises(errors.MissingExtra, match="no compiler"):
        Launchable.jit_compile(TORCH_MUL, file_cache_dir=tmp_path).preload("cpu")


def test_a_corrupted_cache_folder_is_detected(tmp_path: Path) -> None:
    Launchable.jit_compile(MUL, file_cache_dir=tmp_path).preload("cpu")
    (file,) = tmp_path.glob("*.vmfb")
    whole = file.read_bytes()
    file.write_bytes(whole[:-100] + bytes(100))
    with pytest.raises(errors.ArtifactError, match="the code is damaged"):
        Launchable.from_file_cache_only(tmp_path)(X, X)
    assert torch.equal(Launchable.jit_compile(MUL, file_cache_dir=tmp_path)(X, X), X * X)
    assert file.read_bytes() == whole


def test_missing_sources_are_errors(tmp_path: Path) -> None:
    with pytest.raises(errors.ArtifactError, match="no code for <turbine device local-task>"):
        Launchable.from_file_cache_only(tmp_path).preload("cpu")
    with pytest.raises(errors.ArgumentError, match="no folder at"):
        Launchable.from_file_cache_only(tmp_path / "none")
    with pytest.raises(errors.ArtifactError, match="cannot read the code"):
        Launchable.from_file(tmp_path / "none.vmfb")


# Arguments and results


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_dynamic_shapes_are_supported(rows: int) -> None:
    x = torch.rand(rows, 3)
    assert torch.equal(shared(TORCH_MUL)(x, x), x * x)


def test_results_are_arrays_unless_an_argument_is_a_tensor() -> None:
    array = X.numpy()
    result = shared(MUL)(array, array)
    assert type(result) is numpy.ndarray
    assert (result == array * array).all()
    assert torch.equal(shared(MUL)(array, X), X * X)


def test_strided_tensors_are_read_by_element() -> None:
    assert torch.equal(
        shared(MUL)(X.t().contiguous().t(), torch.arange(7.0)[1:].view(2, 3)), X * (X + 1)
    )


def test_python_numbers_are_converted_to_the_declared_type() -> None:
    assert shared(NUMBERS)(1, 2**40, 3, 0.1) == [0.1, 2**40, 3.0, 1]
    assert shared(NUMBERS)(numpy.int8(-1), True, numpy.float32(0.5), 2) == [2.0, 1, 0.5, -1]


def test_results_keep_their_order_and_include_numbers() -> None:
    x, s = torch.tensor([1, -2, 3], dtype=torch.int8), torch.ones(3)
    first, number, second = shared(SEVERAL, "pair")(x, s)
    assert (number, first.dtype, second.dtype) == (7, torch.int8, torch.float32)
    assert torch.equal(first, x)
    assert torch.equal(second, s)
    assert shared(SEVERAL, "nothing")(x) is None


def test_results_never_alias_arguments() -> None:
    x, s = torch.tensor([1, -2, 3], dtype=torch.int8), torch.ones(3)
    _, _, second = shared(SEVERAL, "pair")(x, s)
    second.fill_(9)
    assert torch.equal(s, torch.ones(3))


REFUSED: list[tuple[str, tuple[Any, ...], str]] = [
    (MUL, (X,), "main takes 2 arguments, this call has 1"),
    (MUL, (X, X, X), "main takes 2 arguments, this call has 3"),
    (MUL, (X, X.double()), "argument 1 has dtype float64, expected float32"),
    (MUL, (X, X.int()), "argument 1 has dtype int32, expected float32"),
    (MUL, (X[0], X), "argument 0 has 1 dims (3,), expected 2"),
    (MUL, (X, X[:1]), "argument 1 has size 1 along axis 0, expected 2"),
    (MUL, (X, 1), "argument 1 is a int, expected a tensor"),
    (MUL, (X, None), "argument 1 is a NoneType, expected a tensor"),
    (MUL, (X, X.to("meta")), "argument 1 is on device meta, expected cpu"),
    (MUL, (X.to("meta"), X), "unknown torch device 'meta'"),
    (MUL, (X, X.to_sparse()), "argument 1 has layout torch.sparse_coo"),
    (TORCH_MUL, (X, X.double()), "expected f32 (21000020) but have f64"),
    (TORCH_MUL, (X, X[0]), "shape rank mismatch; expected 2 but have 1"),
    (TORCH_MUL, (X, torch.ones(2, 4)), "shape dimension 1 mismatch; expected 3 but have 4"),
    (NUMBERS, (1.5, 1, 1.0, 1.0), "argument 0 is a float, expected an int"),
    (NUMBERS, (2**31, 1, 1.0, 1.0), "argument 0 is 2147483648, expected an int of 32 bits"),
    (NUMBERS, (1, 2**63, 1.0, 1.0), "argument 1 is 9223372036854775808, expected an int of 64"),
    (NUMBERS, (1, 1, "1", 1.0), "argument 2 is a str, expected a float"),
    (NUMBERS, (1, 1, 1.0, X), "argument 3 is a Tensor, expected a float"),
]


@pytest.mark.parametrize(("source", "args", "reason"), REFUSED)
def test_a_bad_argument_is_rejected(source: str, args: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(errors.ArgumentError) as caught:
        shared(source)(*args)
    assert reason in caught.value.fact


def test_an_unknown_entry_point_lists_the_valid_ones() -> None:
    for name in ("pear", "__init"):
        with pytest.raises(errors.ArgumentError, match=r"unknown entry point '\w+'; valid: .*pair"):
            shared(SEVERAL, name).preload("cpu")


def test_invalid_programs_are_rejected() -> None:
    for damaged in (b"", b"no code", code(MUL)[:1000], bytes(5000)):
        with pytest.raises(errors.ArtifactError):
            Launchable.from_bytes(damaged)
    with pytest.raises(errors.ArgumentError, match="the source is a int"):
        Launchable.jit_compile(5)  # type: ignore[arg-type]
    with pytest.raises(errors.CompileError):
        Launchable.jit_compile("func.func @main(").preload("cpu")
    with pytest.raises(errors.ArgumentError, match="the loader returned a NoneType"):
        Launchable.from_vm_module(lambda device: None).preload("cpu")


@pytest.mark.parametrize("place", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_corrupted_program_is_rejected(place: float) -> None:
    damaged = bytearray(code(MUL))
    damaged[int(place * len(damaged))] ^= 0x10
    with pytest.raises(errors.ArtifactError, match=r"damaged|could not load"):
        Launchable.from_bytes(bytes(damaged))


def test_an_unknown_device_is_rejected() -> None:
    with pytest.raises(errors.DeviceError, match="unknown driver 'nope'"):
        shared(MUL)(X, X, device="nope")
    with pytest.raises(errors.ArgumentError, match="unknown torch device 'meta'"):
        shared(MUL).preload(torch.device("meta"))


def test_the_current_device_is_used() -> None:
    launchable, seen = observed(MUL)
    with Device("local-sync"):
        launchable(X, X)
        launchable(X, X, device="local-task")
    launchable(X, X)
    assert seen == ["local-sync", "local-task"]


# Outputs


@pytest.mark.parametrize("source", [MUL, TORCH_MUL], ids=["builtin", "torch"])
def test_results_are_copied_to_outputs(source: str) -> None:
    out = torch.zeros(3, 2).t()
    assert shared(source)(X, X, outputs=[out]) is out
    assert torch.equal(out, X * X)


def test_programs_with_output_storage_write_outputs_directly() -> None:
    out = torch.zeros(2, 3)
    address = out.data_ptr()
    assert shared(STORAGE)(X, outputs=[out]) is out
    assert (out.data_ptr(), out.tolist()) == (address, (X + X).tolist())
    assert torch.equal(shared(STORAGE)(torch.zeros(2, 3), X), X + X)


@pytest.mark.parametrize("source", [STORAGE, OVERWRITE], ids=["storage", "overwrite"])
def test_outputs_of_any_layout_are_written(source: str) -> None:
    expected = X + X if source is STORAGE else X * X
    plain, strided, unaligned = torch.zeros(2, 3), torch.zeros(3, 2).t(), torch.zeros(7)[1:]
    for out in (plain, strided, unaligned.view(2, 3)):
        assert shared(source)(X, outputs=[out]) is out
        assert torch.equal(out, expected)
    array = numpy.zeros((2, 3), "float32")
    assert shared(source)(X.numpy(), outputs=[array]) is array
    assert (array == expected.numpy()).all()


@pytest.mark.parametrize("source", [STORAGE, OVERWRITE], ids=["storage", "overwrite"])
def test_an_output_may_be_an_argument(source: str) -> None:
    x = X.clone()
    shared(source)(x, outputs=[x])
    assert torch.equal(x, X + X if source is STORAGE else X * X)


def test_outputs_may_mix_tensors_and_numbers() -> None:
    x, s = torch.tensor([200, 1, 3], dtype=torch.uint8), torch.ones(3)
    outputs = [torch.zeros(3, dtype=torch.uint8), torch.zeros(3)]
    first, number, second = shared(SEVERAL, "pair")(x, s, outputs=outputs)
    assert (first is outputs[0], number, second is outputs[1]) == (True, 7, True)
    assert torch.equal(first, x)


BAD_OUTPUTS: list[tuple[list[Any], str]] = [
    ([X.clone(), X.clone()], "main returns 1 tensors, this call has 2 outputs"),
    ([torch.zeros(3, 2)], "an output is float32[3, 2], the result float32[2, 3]"),
    ([torch.zeros(2, 3, dtype=torch.int32)], "an output is int32[2, 3], the result float32[2, 3]"),
    ([torch.zeros(3).expand(2, 3)], "an output cannot be written to"),
    ([None], "an output is a NoneType, expected a tensor"),
]


@pytest.mark.parametrize(("outputs", "reason"), BAD_OUTPUTS, ids=[row[1] for row in BAD_OUTPUTS])
def test_a_bad_output_is_rejected(outputs: list[Any], reason: str) -> None:
    with pytest.raises(errors.ArgumentError) as caught:
        shared(MUL)(X, X, outputs=outputs)
    assert reason in caught.value.fact


# Parameters


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    builder = turbine.aot.ParameterArchiveBuilder()
    builder.add_tensor("w", torch.arange(3.0))
    builder.save(tmp_path / "w.irpa")
    return tmp_path / "w.irpa"


def test_parameters_are_loaded_from_archives_indices_and_providers(archive: Path) -> None:
    index = iree.ParameterIndex()
    index.load(str(archive))
    forms: list[Any] = [
        {"model": archive},
        {"model": str(archive)},
        {"model": turbine.aot.ParameterArchive(archive)},
        {"model": index},
        [index.create_provider(scope="model")],
        index.create_provider(scope="model"),
    ]
    for form in forms:
        launchable = Launchable.from_bytes(code(WEIGHT), parameter_providers=form)
        launchable().fill_(5)
        assert torch.equal(launchable(), torch.arange(3.0))


def test_missing_parameters_are_an_error(archive: Path) -> None:
    with pytest.raises(errors.ParameterError, match="none are given for scope 'model'"):
        Launchable.from_bytes(code(WEIGHT), parameter_providers=archive)()
    with pytest.raises(errors.ParameterError, match="no parameters are given"):
        Launchable.from_bytes(code(WEIGHT))()
    empty = {"model": turbine.aot.ParameterArchive()}
    with pytest.raises(errors.ParameterError, match="'w' is not among those given"):
        Launchable.from_bytes(code(WEIGHT), parameter_providers=empty)()
    with pytest.raises(errors.ParameterError, match="a int holds no parameters"):
        Launchable.from_bytes(code(WEIGHT), parameter_providers=[5])


# State, threads and processes


def test_state_is_kept_between_calls_and_reset() -> None:
    counter = Launchable.from_bytes(code(COUNTER))
    ones = torch.ones(2)
    kept = [counter(ones) for _ in range(3)]
    assert [value[0].item() for value in kept] == [1, 2, 3]
    counter.reset()
    assert counter(ones)[0] == 1


def test_an_invalid_argument_keeps_the_state() -> None:
    counter = Launchable.from_bytes(code(COUNTER))
    counter(torch.ones(2))
    with pytest.raises(errors.ArgumentError):
        counter(torch.ones(3))
    assert counter(torch.ones(2))[0] == 2


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run work in threads at once; an error in one of them is raised here."""
    failures: list[BaseException] = []
    together = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            together.wait()
            work(number)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("uri", ["local-sync", "local-task"])
def test_concurrent_calls_return_their_own_results(uri: str) -> None:
    launchable, seen = observed(TORCH_MUL)

    def work(number: int) -> None:
        for step in range(200):
            x = torch.full((1 + (step + number) % 7, 3), float(number * 1000 + step))
            out = torch.empty_like(x)
            assert launchable(x, x, device=uri, outputs=[out]) is out
            assert torch.equal(out, x * x)
            assert torch.equal(launchable(x, x, device=uri), x * x)

    in_threads(4, work)
    assert seen == [uri]


def test_concurrent_state_updates_are_not_lost() -> None:
    counter = Launchable.from_bytes(code(COUNTER))
    seen: list[float] = []

    def work(number: int) -> None:
        seen.extend(counter(torch.ones(2))[0].item() for _ in range(100))

    in_threads(4, work)
    assert sorted(seen) == list(range(1, 401))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("uri", ["local-sync", "local-task"])
def test_a_forked_child_can_call_programs_of_its_parent(uri: str) -> None:
    launchable = Launchable.from_bytes(code(MUL))
    array = X.numpy()
    expected = (array * array).tolist()
    assert in_child(lambda: str(launchable(array, array, device=uri).tolist())) == str(expected)
    assert launchable(array, array, device=uri).tolist() == expected


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_state_in_a_forked_child_is_an_error() -> None:
    counter = Launchable.from_bytes(code(COUNTER))
    ones = numpy.ones(2, "float32")
    counter(ones)

    def work() -> str:
        try:
            counter(ones)
        except errors.RunError as error:
            refusal = error.fact
        counter.reset()
        return f"{refusal}; {counter(ones)[0]}"

    assert in_child(work) == (
        "the program keeps state, and was called before this process was forked; 1.0"
    )
    assert counter(ones)[0] == 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_during_loading_leaves_no_lock_held() -> None:
    entered, leave = threading.Event(), threading.Event()
    module = iree.VmModule.copy_buffer(get_vm_instance(), code(MUL))

    def load(device: Device) -> Any:
        if threading.current_thread() is not threading.main_thread():
            entered.set()
            leave.wait(60)
        return module

    launchable = Launchable.from_vm_module(load)
    array = X.numpy()
    thread = threading.Thread(target=lambda: launchable.preload("cpu"))
    thread.start()
    entered.wait(60)
    answer = in_child(lambda: str(launchable(array, array).tolist()))
    leave.set()
    thread.join()
    assert answer == str((array * array).tolist())


def test_arrays_work_without_torch(tmp_path: Path) -> None:
    (tmp_path / "mul.vmfb").write_bytes(code(MUL))
    program = """
    import sys
    sys.modules["torch"] = None
    import numpy
    from turbine.runtime import Device, Launchable
    from turbine.runtime.device import get_device_from_torch
    launchable = Launchable.from_file(sys.argv[1])
    x = numpy.arange(6, dtype="float32").reshape(2, 3)
    with Device("local-sync"):
        assert (launchable(x, x) == x * x).all()
    assert (launchable(x, x, device="cpu") == x * x).all()
    assert get_device_from_torch("cpu") is Device("local-task")
    assert "iree.compiler" not in sys.modules
    """
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program), str(tmp_path / "mul.vmfb")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
