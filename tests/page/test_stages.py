"""What artifacts keep for pages: ops, lines and dispatches that refer to each other."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import turbine
import turbine.kernel as tk
import turbine.kernel.lang as tkl
from turbine import aot, errors
from turbine.page import decoding, measuring, stages
from turbine.page.assembly import functions_of
from turbine.page.source_files import places_of, read_lines
from turbine.page.stages import DispatchText, Line, Op, Stages
from turbine.runtime import container
from turbine.runtime.artifact import Artifact

programs = pytest.mark.sweep(1, "programs")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 128)
        self.second = nn.Linear(128, 32)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        scores: Tensor = self.second(hidden)
        return scores.softmax(-1)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.block(x) * 2  # doubled
        return result


X = torch.randn(16, 64)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    saved = tmp_path_factory.mktemp("stages") / "model.turbine"
    aot.export(Model().eval(), args=(X,)).compile(saved, describe=True)
    return saved


@pytest.fixture(scope="module")
def artifact(path: Path) -> Artifact:
    return turbine.load(path)


@pytest.fixture(scope="module")
def kept(artifact: Artifact) -> Stages:
    found = measuring.stages_of(artifact)
    assert found is not None
    return found


def line_of(text: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    return f"{__file__}:{next(n for n, line in enumerate(lines, 1) if text in line)}"


@programs
def test_ops_have_the_lines_that_called_them_innermost_first(kept: Stages) -> None:
    ours = {op.places for op in kept.ops}
    inner, outer = line_of("self.first(x).relu()"), line_of("# doubled")
    assert (inner, outer) in ours
    assert (outer,) in ours


def test_the_text_of_each_line_is_kept(kept: Stages) -> None:
    for op in kept.ops:
        for place in op.places:
            path, _, number = place.rpartition(":")
            assert kept.files[path][number] == Path(path).read_text().splitlines()[int(number) - 1]


def test_ops_have_modules(kept: Stages) -> None:
    assert {"block", "block.first", "block.second", ""} == {op.module for op in kept.ops}


def test_every_op_is_in_the_graph_and_in_the_ir(kept: Stages) -> None:
    every = set(range(len(kept.ops)))
    assert {number for line in kept.graph for number in line.ops} == every
    assert {number for line in kept.ir for number in line.ops} == every
    for line in kept.graph:
        assert all(kept.ops[n].name.partition("/")[2] in line.text for n in line.ops)


def test_every_dispatch_has_ops_ir_and_code(kept: Stages, artifact: Artifact) -> None:
    names = {row["name"] for row in artifact.manifest["dispatches"]}
    assert kept.dispatches.keys() == names
    for name, dispatch in kept.dispatches.items():
        assert name in dispatch.ir
        assert {"ret", "retq"} & {*dispatch.code.split()}
        assert all(0 <= number < len(kept.ops) for number in dispatch.ops)
    computed = {kept.ops[n].name for one in kept.dispatches.values() for n in one.ops}
    assert any("softmax" in name for name in computed)


def test_ir_for_readers_has_no_locations(kept: Stages) -> None:
    assert not any("loc(" in line.text for line in kept.ir)


def test_artifacts_without_description_have_no_stages() -> None:
    bare = aot.export(nn.Linear(4, 4), args=(torch.ones(2, 4),)).compile()
    assert measuring.stages_of(bare) is None


def test_a_copy_of_an_artifact_keeps_its_stages(
    artifact: Artifact, kept: Stages, tmp_path: Path
) -> None:
    artifact.save(tmp_path / "copy.turbine")
    assert measuring.stages_of(turbine.load(tmp_path / "copy.turbine")) == kept


@programs
def test_each_variant_has_stages_of_its_own() -> None:
    out = aot.export(nn.Linear(8, 8), args=(torch.ones(4, 8),))
    several = out.compile(target=["cpu:generic", "cpu"], describe=True)
    names = [name for name in several._contents.sections if name.startswith(stages.SECTION)]
    assert names == ["stages", "stages:1"]
    assert measuring.stages_of(several) is not None


N, B = tkl.sym.N, tkl.sym.B


@tk.gen.kernel(N // B)
def squared(x: tkl.InputBuffer[N, tkl.f32], y: tkl.OutputBuffer[N, tkl.f32]) -> None:
    tile = tkl.load(x, (tkl.program_id(0) * B,), (B,))
    tkl.store(y, (tkl.program_id(0) * B,), tile * tile)


class Squares(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = squared(x)
        return result


@programs
def test_the_operations_of_a_kernel_are_counted() -> None:
    x = torch.randn(4096)
    described = aot.export(Squares(), args=(x,)).compile(describe=True)
    found = measuring.stages_of(described)
    assert found is not None
    assert [op.operations for op in found.ops] == [4096]
    (cost,) = measuring.explain_artifact(described, (x,), calls=1).costs
    assert cost.gflops == pytest.approx(4096 / 1e6 / cost.milliseconds)


class Doubled(aot.CompiledModule):
    def main(self, x=aot.AbstractTensor(4)):  # type: ignore[no-untyped-def]
        return self.double(x)

    @aot.CompiledModule.jittable
    def double(x):  # type: ignore[no-untyped-def]
        return x * 2  # type: ignore[operator]


@programs
def test_a_compiled_module_has_ir_and_code_without_a_graph() -> None:
    found = measuring.stages_of(aot.export(Doubled).compile(describe=True))
    assert found is not None
    assert found.graph == ()
    assert any("torch.aten.mul" in line.text for line in found.ir)
    assert all(dispatch.code for dispatch in found.dispatches.values())


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (b"not compressed", "the stages are damaged"),
        (zlib.compress(b"{"), "the stages are damaged"),
        (zlib.compress(b'{"ops": 3}'), "'3' is not of type list"),
        (zlib.compress(b'{"ops": [{"name": 3}]}'), "'3' is not of type str"),
        (zlib.compress(b"[" * 100_000), "the stages are damaged"),
    ],
)
def test_damaged_stages_are_an_error(damage: bytes, told: str) -> None:
    with pytest.raises(errors.ArtifactError, match=told):
        Stages.from_bytes(damage, "model.turbine")


def test_a_section_that_grows_too_large_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_MOST_BYTES", 1000)
    with pytest.raises(errors.ArtifactError, match="more than 1000 bytes"):
        Stages.from_bytes(zlib.compress(bytes(10_000)), "model.turbine")


def test_a_flipped_byte_is_an_error(path: Path, tmp_path: Path) -> None:
    contents = container.open_file(path)
    data = bytearray(path.read_bytes())
    data[contents.sections[stages.SECTION].offset + 20] ^= 1
    (tmp_path / "damaged.turbine").write_bytes(data)
    with pytest.raises(errors.ArtifactError, match="stages is damaged"):
        measuring.stages_of(turbine.load(tmp_path / "damaged.turbine"))


def test_stages_survive_their_section(kept: Stages) -> None:
    assert Stages.from_bytes(kept.to_bytes(), "here") == kept


def test_joined_stages_number_their_ops_anew() -> None:
    one = Stages((Op("a"),), (Line("a", (0,)),), (), {"d": DispatchText((0,))}, {"f": {"1": "x"}})
    two = Stages((Op("b"),), (Line("b", (0,)),), (), {"e": DispatchText((0,))}, {"f": {"2": "y"}})
    joined = stages.join([one, two])
    assert [line.ops for line in joined.graph] == [(0,), (1,)]
    assert joined.dispatches["e"].ops == (1,)
    assert joined.files == {"f": {"1": "x", "2": "y"}}


def test_decoding_ignores_fields_of_later_versions() -> None:
    assert decoding.decode(Line, '{"text": "x", "later": 1}') == Line("x")
    with pytest.raises(ValueError, match="missing"):
        decoding.decode(Line, "{}")


def test_assembly_is_cut_at_functions_without_directives() -> None:
    text = "\t.text\nfirst:\n\t.cfi_startproc\n\tmovq\t%rsp, %rbp\n.LBB0_1:\n\tret\n.Lfunc_end0:\n"
    text += '\t.long 3\n"second$x":\n\tret\n.Lfunc_end1:\n'
    assert functions_of(text) == {
        "first": "        movq    %rsp, %rbp\n.LBB0_1:\n        ret",
        "second$x": "        ret",
    }


def test_frames_of_pytorch_are_the_last_resort() -> None:
    trace = 'File "/m/model.py", line 3, in forward\nFile "/x/torch/nn/linear.py", line 9, in f'
    assert places_of(trace) == ("/m/model.py:3",)
    assert places_of('File "/x/torch/nn/linear.py", line 9, in f') == ("/x/torch/nn/linear.py:9",)
    assert places_of('File "<eval_with_key>.6", line 9, in forward\n' + trace) == places_of(trace)
    assert places_of(None) == ()


def test_lines_of_files_that_are_gone_have_no_text() -> None:
    assert read_lines(["/nowhere/model.py:3", "%main/mm"]) == {"/nowhere/model.py": {}}
