"""`turbine compile`: models, inputs, options and targets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Turbine
from turbine import load


@pytest.mark.parametrize("name", ["example", "two", "three", "mapping", "instance", "bare"])
def test_compile_accepts_every_form_of_factory(turbine: Turbine, name: str) -> None:
    inputs = ["--input", "2x3xf32"] if name in ("bare", "instance") else []
    answer = turbine("compile", f"cli_models:{name}", "-o", f"{name}.mlir", *inputs)
    assert (answer.code, answer.out) == (0, f"{name}.mlir\n")
    assert "func.func @main" in Path(f"{name}.mlir").read_text()


@pytest.mark.parametrize(
    ("factory", "told"),
    [
        ("cli_models", "'cli_models' does not name a factory"),
        ("cli_absent:f", "no module named 'cli_absent'"),
        ("cli_broken:f", "importing cli_broken raised ModuleNotFoundError: No module named"),
        ("cli_models:exmple", "cli_models has no 'exmple'; nearest: example"),
        (
            "cli_models:raises",
            "calling cli_models:raises raised ValueError: no data here\n  where: ",
        ),
        ("cli_models:missing", "raised FileNotFoundError: [Errno 2] No such file or directory: "),
        ("cli_models:exits", "calling cli_models:exits raised SystemExit"),
        ("cli_models:wants", "calling cli_models:wants raised TypeError: wants() missing 1"),
        ("cli_models:number", "cli_models:number returned a value of type int"),
        ("cli_models:misspelled", "unknown argument 'arguments'; valid: "),
        ("cli_models:bare", "Affine takes (x), 0 inputs given"),
        ("absent.pt2", "no file absent.pt2"),
        ("broken.pt2", "cannot read broken.pt2: "),
    ],
)
def test_an_invalid_factory_is_explained(turbine: Turbine, factory: str, told: str) -> None:
    answer = turbine("compile", factory, "-o", "x.turbine")
    assert (answer.code, answer.out) == (1, "")
    assert told in answer.err.partition("error: ")[2]
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("-o x.tar", "unknown output suffix '.tar'; valid: "),
        ("-o absent/x.turbine", "no folder absent to write x.turbine in"),
        ("-o x.turbine --target cpux", "unknown target 'cpux'; valid: cpu,"),
        ("-o x.turbine --strategy best", "unknown strategy for cpu 'best'; valid: "),
        ("-o x.turbine --weights here", "unknown place for weights 'here'; valid: "),
        ("-o x.vmfb --archive w.irpa", "--archive with .vmfb"),
        ("-o x.turbine --archive w.irpa --weights inline", "--archive with --weights inline"),
        ("-o x.mlir --target cpu", "--target or --strategy with .mlir"),
        ("-o x.turbine --input 2x3xf32", "cli_models:two returns its own inputs"),
        ("-o x.turbine --group-size 8", "--group-size without --quantize"),
        ("-o x.turbine --target cpu --target cuda", "cannot compile for ['cpu:host', 'cuda:"),
        ("-o x.vmfb --target cpu --target cpu:generic", "several targets with .vmfb"),
    ],
)
def test_an_invalid_option_of_compile_is_explained(turbine: Turbine, words: str, told: str) -> None:
    answer = turbine("compile", "cli_models:two", *words.split())
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.partition("error: ")[2].startswith(told)
    assert not Path("x.turbine").exists()


def test_traceback_shows_the_line_that_raised(turbine: Turbine) -> None:
    told = turbine("compile", "cli_models:raises", "-o", "x.turbine", "--traceback").err
    assert 'raise ValueError("no data here")' in told


def test_compile_takes_a_saved_program(turbine: Turbine) -> None:
    batch = torch.export.Dim("batch", max=8)
    program = torch.export.export(
        torch.nn.Linear(3, 2), (torch.ones(4, 3),), dynamic_shapes=({0: batch},)
    )
    torch.export.save(program, "linear.pt2")
    assert turbine("compile", "linear.pt2", "-o", "linear.mlir").code == 0
    assert "!torch.vtensor<[?,3],f32>" in Path("linear.mlir").read_text()
    answer = turbine("compile", "linear.pt2", "-o", "x.turbine", "--input", "2x3xf32")
    assert "linear.pt2 has its own inputs" in answer.err


def test_compile_takes_a_folder_of_transformers(turbine: Turbine) -> None:
    transformers = pytest.importorskip("transformers", reason="an extra, `models`")
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=20, num_hidden_layers=1, **sizes)
    config.save_pretrained("random")
    model = transformers.BertModel(config).eval()
    model.save_pretrained("bert")
    words = ["-i", "input_ids:batch[1..4]x8xi64", "-o", "bert.turbine"]
    answer = turbine("compile", "hf:bert", *words)
    assert answer.code == 0, answer.err
    loaded = load("bert.turbine")
    ids = torch.arange(24).reshape(3, 8) % 20
    with torch.no_grad():
        expected = model(input_ids=ids).last_hidden_state
    torch.testing.assert_close(loaded(input_ids=ids)["last_hidden_state"], expected)
    words[-1] = "bert.mlir"
    assert "the weights are random" in turbine("compile", "hf:BertModel@random", *words).err
    for source, told in (
        ("hf:absent", "no config.json in absent"),
        ("hf:BretModel@bert", "has no architecture 'BretModel'"),
        ("hf:random", "config.json does not name one architecture"),
    ):
        assert told in turbine("compile", source, *words).err


def test_named_sizes_are_dynamic(turbine: Turbine) -> None:
    words = ["-i", "first:batch[1..64]x3xf32", "-i", "scale:widthxf32", "-i", "second:batchx3xf32"]
    answer = turbine("compile", "cli_models:sized", "-o", "sized.turbine", *words)
    assert answer.code == 0, answer.err
    shown = json.loads(turbine("inspect", "sized.turbine", "--json").out)
    signature = shown["functions"]["main"]
    shapes = {row["name"]: row["shape"] for row in signature["inputs"]}
    assert shapes == {"first": ["batch", 3], "second": ["batch", 3], "scale": ["width"]}
    assert signature["symbols"]["batch"] == {"minimum": 1, "maximum": 64}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("-i n[1..8]x3xf32 -i n[1..9]x3xf32", "n[1..9], and before n[1..8]"),
        ("-i n[0..1]x3xf32", "n[0..1] has no size that can vary"),
        ("-i maxx3xf32", "cannot read input 'maxx3xf32'"),
        ("-i n[2]x3xf32", "cannot read input 'n[2]x3xf32'"),
        ("-i y:nx3xf32", "unknown argument 'y'; valid: x"),
        ("-i x:n[1..8x3xf32", "a dynamic size has a name"),
    ],
)
def test_an_invalid_input_of_compile_is_explained(turbine: Turbine, words: str, told: str) -> None:
    answer = turbine("compile", "cli_models:bare", "-o", "x.turbine", *words.split())
    assert answer.code == 1
    assert told in answer.err


def test_compile_packs_weights(turbine: Turbine) -> None:
    words = ["-i", "1x64xf32", "--quantize", "4", "--group-size", "16"]
    answer = turbine("compile", "cli_models:wide", "-o", "wide.turbine", *words)
    assert answer.code == 0
    assert "note: 1 weights are packed in 4 bits; 8.1 KiB before, " in answer.err
    shown = json.loads(turbine("inspect", "wide.turbine", "--json").out)
    assert [w["name"] for w in shown["weights"]] == ["weight.packed", "weight.scales", "bias"]


def test_compile_prints_every_file_it_writes(turbine: Turbine) -> None:
    words = ["compile", "cli_models:two", "--weights", "external"]
    assert turbine(*words, "-o", "a.vmfb").out.split() == ["a.vmfb", "a.irpa"]
    archived = turbine(*words, "-o", "a.turbine", "--archive", "w.irpa")
    assert archived.out.split() == ["a.turbine", "w.irpa"]
    written = ["a.vmfb", "a.irpa", "a.turbine", "w.irpa"]
    assert [Path(name).stat().st_size > 0 for name in written] == [True] * 4


def test_compile_writes_code_for_another_target(turbine: Turbine) -> None:
    words = ["-o", "gpu.turbine", "--target", "cuda:sm_80"]
    answer = turbine("compile", "cli_models:two", *words)
    assert (answer.code, answer.out) == (0, "gpu.turbine\n")
    assert json.loads(turbine("inspect", "gpu.turbine", "--json").out)["driver"] == "cuda"


def test_compile_writes_code_for_several_cpus(turbine: Turbine) -> None:
    words = ["-o", "cpus.turbine", "--target", "cpu:generic", "--target", "cpu"]
    assert turbine("compile", "cli_models:two", *words).code == 0
    targets = json.loads(turbine("inspect", "cpus.turbine", "--json").out)
    assert (targets["target"]["chip"], len(targets["variants"])) == ("generic", 1)


def test_compile_notes_a_model_in_training_mode(turbine: Turbine) -> None:
    answer = turbine("compile", "cli_models:training", "-o", "t.mlir")
    assert answer.code == 0
    assert "note: the model is in training mode" in answer.err
