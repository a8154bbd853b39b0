"""The page, traces and comparisons, from explanations made by hand and from a real artifact."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import turbine
from turbine import errors
from turbine.cli.main import main
from turbine.page import explanation, html, measuring, traces
from turbine.page.comparison import Pair, compare
from turbine.page.explanation import Cost, Event, Explanation, Fallback, Memory, Peak
from turbine.page.stages import DispatchText, Line, Op, Stages
from turbine.runtime import device, profiler

OPS = (
    Op("main/mm", ("/m/model.py:3",), "fc", 300.0),
    Op("main/relu", ("/m/model.py:4",), "", 100.0),
    Op("main/view", ("/m/model.py:4",), "", 0.0),
)
MADE = Explanation(
    "a <model>",
    {"target": "cpu"},
    4.0,
    Stages(
        OPS,
        (Line("mm = f('</script><script>alert(1)//')", (0,)), Line("relu = g(mm)", (1,))),
        (Line("%0 = torch.aten.mm", (0,)),),
        {"main_dispatch_0_matmul": DispatchText((0, 1), "func", "ret")},
        {"/m/model.py": {"3": "x = x @ w  # </script> & https://example.org", "4": "x = x.relu()"}},
    ),
    (Cost("main_dispatch_0_matmul", 1, 2.0, 1.0, 1.5, 40.0, 2.0),),
    (Fallback("aten.svd", "no lowering", "/m/model.py:4", 2),),
    events=(
        Event("execute", "execute", 0, 3000),
        Event("main_dispatch_0_matmul", "dispatch", 10, 2000, 3000),
    ),
    memory=(Memory(0, 640), Memory(3000, 0)),
    peak=Peak(1e11, 1e10),
)


def data_of(text: str) -> dict[str, Any]:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    parsed: dict[str, Any] = json.loads(found)
    return parsed


def test_the_page_holds_the_whole_explanation_but_events() -> None:
    data = data_of(html.page(MADE))
    assert data["stages"]["graph"][0]["text"] == MADE.stages.graph[0].text
    assert data["stages"]["files"] == MADE.stages.files
    assert (data["milliseconds"], data["events"], data["pairs"]) == (4.0, [], [])


def test_text_of_a_model_cannot_end_its_script() -> None:
    text = html.page(MADE)
    assert text.count("</script>") == text.count("<script") == 2
    assert "alert(1)" in text
    assert "<title>a &lt;model&gt;</title>" in text


def test_placeholders_in_texts_of_the_model_stay() -> None:
    lines = (Line("@SCRIPT@ @DATA@ @TITLE@"),)
    made = replace(MADE, title="@DATA@", stages=replace(MADE.stages, graph=lines))
    assert data_of(html.page(made))["stages"]["graph"][0]["text"] == lines[0].text


def test_the_page_asks_nothing_of_a_network() -> None:
    empty = html.page(Explanation("empty"))
    assert not re.search(
        r"https?:|//[a-z]|url\(|@import|\bsrc=|fetch\(|XMLHttp|<link[^>]*http", empty
    )
    assert "default-src 'none'" in empty


def test_the_template_is_small() -> None:
    assert len(html.page(Explanation("empty"))) < 60_000


def test_time_is_split_by_operations() -> None:
    assert explanation.times_of_ops(MADE) == [1.5, 0.5, 0.0]
    even = replace(
        MADE, stages=replace(MADE.stages, ops=tuple(replace(o, operations=0.0) for o in OPS))
    )
    assert explanation.times_of_ops(even) == [1.0, 1.0, 0.0]


def test_an_explanation_survives_its_file(tmp_path: Path) -> None:
    MADE.save(tmp_path / "made.json")
    assert explanation.load(tmp_path / "made.json") == MADE


@pytest.mark.parametrize("text", ["", "[]", '{"title": 3}', '{"facts": {}}', "\x00"])
def test_other_files_are_no_explanations(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(errors.ArgumentError, match="is not an explanation"):
        explanation.load(tmp_path / "other.json")


def test_runs_are_compared_by_dispatch_line_and_module() -> None:
    slower = replace(MADE, milliseconds=6.0, costs=(replace(MADE.costs[0], milliseconds=4.0),))
    assert compare(MADE, slower) == [
        Pair("call", "a <model>", 4.0, 6.0),
        Pair("dispatch", "main_dispatch_matmul", 2.0, 4.0),
        Pair("line", "/m/model.py:3", 1.5, 3.0),
        Pair("module", "fc", 1.5, 3.0),
        Pair("line", "/m/model.py:4", 0.5, 1.0),
    ]


def test_dispatches_match_without_their_order() -> None:
    row = MADE.costs[0]
    before = replace(MADE, costs=(replace(row, name="d_dispatch_3_pack"), replace(row, name="x")))
    after = replace(
        MADE,
        costs=(
            replace(row, name="d_dispatch_12_pack", milliseconds=1.0),
            replace(row, name="d_dispatch_4_pack"),
        ),
    )
    found = {p.name: (p.before, p.after) for p in compare(before, after) if p.kind == "dispatch"}
    assert found == {
        "d_dispatch_pack": (2.0, 2.0),
        "d_dispatch_pack (2)": (None, 1.0),
        "x": (2.0, None),
    }


def test_a_trace_has_events_ops_and_memory() -> None:
    rows = traces.trace(MADE)["traceEvents"]
    (dispatch,) = (row for row in rows if row["name"] == "main_dispatch_0_matmul")
    assert (dispatch["ph"], dispatch["ts"], dispatch["dur"]) == ("X", 10, 2000)
    assert dispatch["args"] == {"busy_us": 3000, "ops": "main/mm, main/relu"}
    assert [row["args"]["bytes"] for row in rows if row["ph"] == "C"] == [640, 0]


def steps_of(made: Explanation, folder: Path) -> list[tuple[float, float]]:
    """The start and duration of each step of a run for TensorBoard."""
    path = traces.save_tensorboard(folder / "log", made)
    assert path.name.endswith(".pt.trace.json")
    rows = json.loads(path.read_text())["traceEvents"]
    path.unlink()
    return [(row["ts"], row["dur"]) for row in rows if row["name"].startswith("ProfilerStep#")]


def test_a_run_for_tensorboard_has_a_step_for_each_call(tmp_path: Path) -> None:
    runs = tuple(Event("execute", "execute", start, 10) for start in (0, 20, 40, 60))
    assert steps_of(replace(MADE, events=runs, calls=2), tmp_path) == [(0, 30), (40, 30)]
    assert steps_of(replace(MADE, events=runs, calls=3), tmp_path) == [(0, 70)]
    assert steps_of(replace(MADE, events=runs, calls=0), tmp_path) == [(0, 70)]
    assert steps_of(replace(MADE, events=(), calls=2), tmp_path) == []


# An artifact

X = torch.randn(16, 64)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "model.turbine"
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8)).eval()
    turbine.aot.export(model, args=(X,)).compile(path, describe=True)
    return path


@pytest.fixture(scope="module")
def measured(saved: Path) -> Explanation:
    return measuring.explain_artifact(turbine.load(saved), (X,), calls=2)


def test_every_dispatch_that_was_timed_leads_to_lines(measured: Explanation) -> None:
    assert measured.costs
    for cost in measured.costs:
        ops = measured.stages.dispatches[cost.name].ops
        assert ops
        for place in (place for number in ops for place in measured.stages.ops[number].places):
            path, _, line = place.rpartition(":")
            assert line in measured.stages.files[path]


def test_times_of_ops_sum_to_those_of_dispatches(measured: Explanation) -> None:
    total = sum(cost.milliseconds for cost in measured.costs)
    assert sum(explanation.times_of_ops(measured)) == pytest.approx(total)


def test_calls_on_several_threads_take_and_return_memory(saved: Path, tmp_path: Path) -> None:
    code, *archives = turbine.load(saved).save_vmfb(tmp_path / "model.vmfb")
    run = profiler.Run(code, device.TASK, "main", [X], {"model": archives[0]})
    seen = profiler.observe(run, 2, tmp_path)
    held = [point.bytes for point in seen.memory]
    assert max(held) >= 16 * 8 * 4
    assert any(after < before for before, after in itertools.pairwise(held))
    assert [point.time for point in seen.memory] == sorted(point.time for point in seen.memory)
    assert seen.allocated >= 2 * 16 * 8 * 4


def test_what_a_call_allocates_is_known(measured: Explanation) -> None:
    assert re.match(r"[1-9][\d.]* \w+ in a call", measured.facts["allocated"])


def test_the_machine_has_a_roof(measured: Explanation) -> None:
    assert measured.peak is not None
    assert measured.peak.operations > 0
    assert measured.peak.bandwidth > 0
    assert any(cost.gflops for cost in measured.costs)


def test_a_bare_artifact_says_what_is_missing_and_how_to_get_it() -> None:
    bare = turbine.aot.export(nn.Linear(8, 8).eval(), args=(torch.ones(4, 8),)).compile()
    found = measuring.explain_artifact(bare, (torch.ones(4, 8),), calls=1)
    told, *_ = found.missing
    assert "turbine compile --describe" in told
    assert found.costs
    assert told in data_of(html.page(found))["missing"]


def test_the_command_writes_all_forms(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / name for name in ("page.html", "trace.json", "run.json")]
    page, trace, run = map(str, files)
    words = ["explain", str(saved), "--calls", "2"]
    assert main([*words, "--html", page, "--trace", trace, "--json", run]) == 0
    assert capsys.readouterr().out.splitlines() == [page, trace, run]
    assert main([*words, "--html", page, "--compare", run, "--tensorboard", str(tmp_path)]) == 0
    data = data_of(files[0].read_text())
    assert data["pairs"][0]["before"] == explanation.load(run).milliseconds
    assert len([*tmp_path.glob("*.pt.trace.json")]) == 1
    capsys.readouterr()
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("function        main(input: float32[16, 64])")


def test_bad_usage_is_an_error(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*words: str) -> str:
        assert main(["explain", *words]) == 1
        return capsys.readouterr().err

    page = str(tmp_path / "page.html")
    assert "'.txt'; valid: .html" in told(str(saved), "--html", "page.txt")
    assert "no folder" in told(str(saved), "--html", "/nowhere/page.html")
    assert "--compare without --html" in told(str(saved), "--compare", "run.json")
    assert "cannot compare with x.vmfb" in told(str(saved), "--html", page, "--compare", "x.vmfb")
    assert "is not an explanation" in told(str(saved), "--html", page, "--compare", "none.json")
    assert "does not name a factory" in told("model")
    assert "cannot profile 0 calls" in told(str(saved), "--calls", "0")
    assert not Path(page).exists()
