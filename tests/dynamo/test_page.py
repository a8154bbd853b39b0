"""`turbine.explain(...).html(path)`: the page of a function under torch.compile."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import turbine
from turbine import config, errors
from turbine.dynamo.report import CompileReport
from turbine.page import explanation
from turbine.page.explanation import Explanation

pages = pytest.mark.sweep(1, "pages")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.layers = nn.ModuleList([nn.Linear(32, 8)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu() * 2 + 1
        y = torch.linalg.cholesky(x @ x.T + 4000 * torch.eye(4))  # no lowering
        result: Tensor = self.layers[0](y @ x).sigmoid()
        return result


@pytest.fixture(scope="module")
def report() -> CompileReport:
    with config.override(library_calls="never"):
        return turbine.explain(Model().eval().requires_grad_(False), torch.randn(4, 32))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page") / "page.html"


@pytest.fixture(scope="module")
def shown(report: CompileReport, page: Path) -> Explanation:
    return report.html(page, calls=2)


@pages
def test_each_part_has_its_stages(shown: Explanation) -> None:
    text = [line.text for line in shown.stages.graph]
    assert [line for line in text if line.startswith("#")] == [
        "# part 0, inference",
        "# part 1, inference",
    ]
    linked = {number for line in shown.stages.graph for number in line.ops}
    assert linked == set(range(len(shown.stages.ops)))


def test_dispatches_of_parts_lead_to_lines_and_modules(shown: Explanation) -> None:
    assert {cost.name.partition(":")[0] for cost in shown.costs} == {"part 0", "part 1"}
    for cost in shown.costs:
        ops = [shown.stages.ops[n] for n in shown.stages.dispatches[cost.name].ops]
        assert ops
        assert all(place.startswith(__file__) for op in ops for place in op.places)
    assert {"first", "layers.0", ""} <= {op.module for op in shown.stages.ops}
    assert sum(cost.share for cost in shown.costs) == pytest.approx(1)


def test_fallbacks_have_a_reason_and_the_text_of_their_line(shown: Explanation) -> None:
    (left,) = (one for one in shown.fallbacks if "cholesky" in one.op)
    assert left.reason
    assert left.place is not None
    path, _, line = left.place.rpartition(":")
    assert shown.stages.files[path][line].endswith("# no lowering")
    assert any("cholesky" in op.name for op in shown.pytorch)


def test_the_page_has_all_of_it(shown: Explanation, page: Path) -> None:
    (text,) = re.findall(r'id="data">(.*?)</script>', page.read_text(), re.S)
    data = json.loads(text)
    assert len(data["costs"]) == len(shown.costs)
    assert data["fallbacks"][0]["reason"]
    assert data["stages"]["graph"][0]["text"] == "# part 0, inference"


def test_events_of_parts_follow_each_other(shown: Explanation) -> None:
    names = [event.name.partition(":")[0] for event in shown.events]
    assert names == sorted(names)
    ends = [e.start + e.duration for e in shown.events if e.name.startswith("part 0")]
    starts = [e.start for e in shown.events if e.name.startswith("part 1")]
    assert max(ends) <= min(starts)


@pages
def test_a_later_run_is_compared_with_a_saved_one(
    report: CompileReport, shown: Explanation, page: Path
) -> None:
    shown.save(page.with_suffix(".json"))
    report.html(page, calls=1, before=explanation.load(page.with_suffix(".json")))
    assert '"pairs":[{"kind":"call"' in page.read_text()


def test_effects_of_ops_do_not_shift_the_inputs_of_a_model() -> None:
    model = Model().eval().requires_grad_(False)
    x = torch.randn(4, 32)
    compiled = torch.compile(model, backend="turbine", options={"library_calls": "never"})
    torch.testing.assert_close(compiled(x), model(x))


def test_bad_arguments_are_errors(report: CompileReport, tmp_path: Path) -> None:
    with pytest.raises(errors.ArgumentError, match="cannot profile 0 calls"):
        report.html(tmp_path / "page.html", calls=0)
    with pytest.raises(errors.ArtifactError, match="no folder"):
        report.html(tmp_path / "absent" / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_pytorch_runs_has_a_page_too(tmp_path: Path) -> None:
    shown = turbine.explain(lambda x: torch.linalg.cholesky(x), torch.eye(3)).html(
        tmp_path / "page.html", calls=1
    )
    assert shown.costs == ()
    assert shown.fallbacks
