"""Coverage of PyTorch's op samples: each status is right, and the sampled ops pass.

The whole tables are `make coverage`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.commit_seed import draw_slice
from tests.jobs_here import answer_here
from turbine import config, errors
from turbine.capture import ownership
from turbine.capture.decompositions import extend_aot_decompositions
from turbine.cli.main import main
from turbine.coverage import architectures, compiled, exported, forms, samples, sweep
from turbine.coverage.answers import compare_types
from turbine.coverage.compiled import judge_case, make_front_door
from turbine.coverage.front_door import TITLES, FrontDoor
from turbine.coverage.report import share, to_section, to_text, update_page
from turbine.coverage.samples import Case
from turbine.coverage.tiny_models import Architecture
from turbine.coverage.verdicts import (
    COMPILED,
    FAILS,
    FALLS_BACK,
    FREE,
    NO_GRADIENT,
    NOT_TRACED,
    PARTLY,
    RANDOM,
    UNSUPPORTED,
    Judged,
    Verdict,
    combine,
)

statuses = pytest.mark.sweep(2, "statuses")

commands = pytest.mark.sweep(1, "commands")

DOCS = Path(__file__).parents[2] / "docs"
aten = torch.ops.aten
X = torch.linspace(-1.0, 1.0, 6)
SLICE = 2  # ops: a count, so that a slow machine sees the same ones
EXPORT_SLICE = 1
# Ops that fail as exports, and how. One that is fixed leaves the table.
BROKEN_EXPORTS = {"combinations": "not a subset of"}


def _judge(function: Callable[..., Any], *, training: bool = False) -> Verdict:
    x = X.clone().requires_grad_(training)
    return judge_case(Case(function, (x,), {}), training=training)


def _judge_export(function: Callable[..., Any], *, dynamic: bool = False) -> Verdict:
    axes = exported.all_axes if dynamic else exported.no_axes
    return exported.judge_case(Case(function, (X,), {}), axes=axes)


@pytest.fixture(autouse=True)
def _without_what_dynamo_keeps() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def test_compiled_forward_and_backward() -> None:
    assert _judge(torch.exp) == Verdict(COMPILED)
    assert _judge(torch.exp, training=True) == Verdict(COMPILED)


def test_a_view_is_free() -> None:
    assert _judge(lambda x: x.view(2, 3)) == Verdict(FREE)


def test_unsupported_ops_fall_back_with_a_reason() -> None:
    verdict = _judge(torch.nonzero)
    assert verdict.status == FALLS_BACK
    assert "aten.nonzero" in verdict.reason


def test_ops_around_a_fallback_are_partly_compiled() -> None:
    verdict = _judge(lambda x: ((x + 1) * 2 - x.exp()).nonzero())
    assert verdict.status == PARTLY


def test_random_numbers_are_not_compared() -> None:
    assert _judge(torch.bernoulli).status != FAILS
    assert _judge(torch.rand_like) == Verdict(RANDOM)


def test_ops_that_pytorch_cannot_trace_are_not_counted() -> None:
    assert _judge(lambda x: torch.allclose(x, x)).status == NOT_TRACED


# Decompositions of expm1, and what is said of the answer.
wrong_rules = pytest.mark.parametrize(
    ("rule", "said"),
    [
        (lambda x: x + 1, "not close"),
        (lambda x: x.exp2().to(torch.float64), "float64"),
        (lambda x: x.exp2().unsqueeze(0), "[1, 6]"),
    ],
    ids=["values", "dtype", "shape"],
)


@pytest.mark.sweep(1)
@wrong_rules
def test_a_wrong_answer_fails(rule: Callable[..., Any], said: str) -> None:
    with extend_aot_decompositions(add_ops={aten.expm1.default: rule}):
        verdict = _judge(torch.expm1)
    assert verdict.status == FAILS
    assert said in verdict.reason


def test_a_wrong_gradient_fails() -> None:
    with extend_aot_decompositions(add_ops={aten.tanh_backward.default: lambda g, y: g}):
        verdict = _judge(torch.tanh, training=True)
    assert verdict.status == FAILS


def test_strides_are_compared() -> None:
    x = torch.ones(2, 3)
    assert compare_types([x], [x.t().contiguous().t()]) is not None
    assert compare_types([x], [x.t().contiguous().t()], strides=False) is None


def test_forms_have_equal_elements() -> None:
    x = torch.complex(torch.arange(6.0), -torch.arange(6.0)).reshape(2, 3)
    for form in forms.FORMS:
        (y,) = forms.apply(form, (x.clone(),), 0)
        assert y.shape == x.shape
        if form not in ("expanded", "mixed"):
            torch.testing.assert_close(y, x)


def test_forms_have_the_layout_of_their_name() -> None:
    x = torch.zeros(2, 3, dtype=torch.complex64)
    made = {form: forms.apply(form, x.clone(), 0) for form in forms.FORMS}
    assert made["transposed"].stride() == (1, 2)
    assert (made["spread"].stride(), made["spread"].storage_offset()) == ((7, 2), 1)
    assert 0 in made["expanded"].stride()
    assert made["negated"].is_neg()
    assert made["conjugated"].is_conj()
    assert made["dynamic"]._dynamo_weak_dynamic_indices


def test_forms_that_change_nothing_are_skipped() -> None:
    row, number = torch.ones(3), torch.ones(())
    applied = {form for form in forms.FORMS if forms.can_apply(form, (row, 1))}
    assert applied == {"spread", "expanded", "negated", "mixed", "dynamic"}
    assert not forms.can_apply("dynamic", (number, None))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("form", ["transposed", "spread", "expanded", "negated", "dynamic"])
def test_forms_of_arguments_compile(form: str) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    case = Case(lambda x: (x.exp() * x).sum(0), (x,), {}, form=form)
    assert judge_case(case).status == COMPILED


def test_a_failure_in_a_form_is_reported_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(case: Case, undefined: bool, *, training: bool) -> Verdict:
        return Verdict(COMPILED) if case.form is None else Verdict(FAILS, "why")

    monkeypatch.setattr(compiled, "judge_case", judge)
    verdicts = compiled.judge(samples.ops()["abs"], samples=1, forms=["spread", "conjugated"])
    assert verdicts["forward"] == Verdict(FAILS, "spread arguments: why")


def _overwritten(x: torch.Tensor) -> torch.Tensor:
    return x.index_put((torch.tensor([1, 3]),), torch.zeros(2))


@statuses
def test_a_mutated_argument_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _judge(_overwritten).status == COMPILED
    monkeypatch.setattr(ownership, "keep_arguments", lambda graph, names: None)
    verdict = _judge(_overwritten)
    assert verdict.status == FAILS, "IREE no longer writes into arguments: drop ownership.py"


@statuses
@pytest.mark.parametrize("dynamic", [False, True], ids=exported.WAYS)
def test_an_export_is_compiled(dynamic: bool) -> None:
    assert _judge_export(torch.exp, dynamic=dynamic) == Verdict(COMPILED)


def test_an_export_with_an_unsupported_op_is_unsupported() -> None:
    verdict = _judge_export(lambda x: torch.linalg.eigvals(x.view(2, 3)[:, :2]))
    assert verdict.status == UNSUPPORTED
    assert "linalg_eig" in verdict.reason


@pytest.mark.sweep(1)
@wrong_rules
def test_an_export_with_a_wrong_answer_fails(rule: Callable[..., Any], said: str) -> None:
    with extend_aot_decompositions(add_ops={aten.expm1.default: rule}):
        verdict = _judge_export(torch.expm1)
    assert verdict.status == FAILS
    assert said in verdict.reason


def test_an_export_that_raises_fails() -> None:
    def refuse(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such rule")

    with extend_aot_decompositions(add_ops={aten.expm1.default: refuse}):
        verdict = _judge_export(torch.expm1)
    assert verdict.status == FAILS
    assert "no such rule" in verdict.reason


@statuses
def test_an_export_that_does_not_write_its_argument_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _judge_export(lambda x: x.add_(1)).status == COMPILED
    monkeypatch.setattr(exported, "_compile", lambda case, axes: lambda x: [x + 1])
    assert _judge_export(lambda x: x.add_(1)).status == FAILS


def test_ops_that_torch_export_cannot_trace_are_not_counted() -> None:
    verdict = _judge_export(lambda x: torch.allclose(x, x))
    assert verdict.status == NOT_TRACED
    assert "torch.export" in verdict.reason


@statuses
def test_random_numbers_of_exports_are_not_compared() -> None:
    assert _judge_export(torch.rand_like) == Verdict(RANDOM)


@statuses
def test_exports_without_fusion_are_listed() -> None:
    with config.override(strategy="isolated"):
        verdict = _judge_export(lambda x: x.exp() + 1)
    assert verdict == Verdict(COMPILED, "only by strategy isolated")
    judged = [Judged("exp", {"static": verdict, "dynamic": Verdict(COMPILED)})]
    assert "only by strategy isolated" in to_text(judged, exported.FRONT_DOOR)
    assert "| only by strategy isolated | 1 | `exp` |" in to_section(judged, exported.FRONT_DOOR)


def test_the_verdict_of_an_op_is_that_of_its_worst_sample() -> None:
    verdicts = [Verdict(COMPILED), Verdict(FALLS_BACK, "why"), Verdict(NOT_TRACED)]
    assert combine(verdicts) == Verdict(FALLS_BACK, "why")
    assert combine([Verdict(NOT_TRACED), Verdict(COMPILED)]).status == COMPILED
    assert combine([Verdict(RANDOM), Verdict(COMPILED)]).status == RANDOM
    assert combine([Verdict(RANDOM), Verdict(FAILS, "why")]).status == FAILS


def test_the_share_counts_traceable_ops_only() -> None:
    statuses = [COMPILED, FREE, FALLS_BACK, RANDOM, NOT_TRACED, NO_GRADIENT]
    assert share(Verdict(status) for status in statuses) == 0.5


def test_a_section_has_a_row_for_each_op() -> None:
    verdicts = {"forward": Verdict(COMPILED), "backward": Verdict(FALLS_BACK, "aten.x: because")}
    text = to_section([Judged("fft.fft", verdicts)], make_front_door())
    assert "| `fft.fft` | compiled | falls back |" in text
    assert "| aten.x: because | 1 | `fft.fft` |" in text


# Versions that do not depend on what is installed.
DOORS = [
    replace(door, version=lambda: "samples")
    for door in (make_front_door(), exported.FRONT_DOOR, architectures.FRONT_DOOR)
]
NAMES = {"op": ["add", "fft.fft", "linalg.inv", "view"], "architecture": ["bert", "llama", "vit"]}


def test_the_page_of_the_docs_is_as_written() -> None:
    page = (DOCS / "coverage.md").read_text()
    written = page
    for door in DOORS:
        judged = read_section(page, door)
        if judged:
            written = update_page(written, judged, door)
    assert _list_tables(written) == _list_tables(page)


def _list_tables(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith(("#", "- ", "|"))]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.title)
def test_sections_round_trip(door: FrontDoor) -> None:
    statuses = itertools.cycle(door.statuses)
    explained = {status for found in door.explained.values() for status in found}
    judged = [
        Judged(name, {way: _verdict(next(statuses), explained) for way in door.ways})
        for name in NAMES[door.noun]
    ]
    page = update_page("", judged, door)
    assert update_page("", read_section(page, door), door) == page
    assert "writes this section" in page


def test_a_section_is_written_without_a_change_of_the_others() -> None:
    page = ""
    for door in reversed(DOORS):
        verdicts = dict.fromkeys(door.ways, Verdict(COMPILED))
        page = update_page(page, [Judged(NAMES[door.noun][0], verdicts)], door)
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == [*TITLES]
    door = DOORS[1]
    failed = [Judged("sub", dict.fromkeys(door.ways, Verdict(FAILS, "why")))]
    changed = update_page(page, failed, door)
    assert "| `sub` | fails | fails |" in changed
    assert update_page(changed, read_section(page, door), door) == page


def _verdict(status: str, explained: set[str]) -> Verdict:
    return Verdict(status, f"aten.x: {status}" if status in explained else "")


def read_section(page: str, door: FrontDoor) -> list[Judged]:
    """What a section lists; a reason belongs to the first status that it explains."""
    section = page.partition(f"\n## {door.title}\n")[2].partition("\n## ")[0]
    found: dict[str, list[Verdict]] = {}
    statuses: Sequence[str] = ()
    for line in section.splitlines():
        if line.startswith("### "):
            statuses = door.explained.get(line.removeprefix("### "), ())
        cells = line.removeprefix("| ").removesuffix(" |").split(" | ")
        if line.startswith("| `"):
            found[cells[0].strip("`")] = [Verdict(status) for status in cells[1:]]
        elif statuses and line.startswith("| ") and cells[0] not in ("why", "---"):
            for name in cells[2].replace("`", "").split():
                _add_reason(found[name], statuses, cells[0])
    return [Judged(name, dict(zip(door.ways, found[name], strict=True))) for name in sorted(found)]


def _add_reason(verdicts: list[Verdict], statuses: Sequence[str], reason: str) -> None:
    place = next(i for i, verdict in enumerate(verdicts) if verdict.status in statuses)
    old = verdicts[place]
    verdicts[place] = Verdict(old.status, "; ".join(filter(None, (old.reason, reason))))


def test_slices_depend_on_the_seed_only() -> None:
    names = [str(n) for n in range(50)]
    assert sweep.shuffle(names, 1) == sweep.shuffle(names, 1)
    assert sweep.shuffle(names, 1) != sweep.shuffle(names, 2)


@pytest.fixture(scope="module")
def judged(seed: int) -> list[Judged]:
    """A slice of all ops between guard pages, after one that there is not."""
    names = ["no such op", *sweep.shuffle(list(samples.ops()), seed)[:SLICE]]
    chosen = draw_slice("forms of arguments", list(forms.FORMS), 1, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURBINE_GUARD", "1")
        return list(sweep.sweep(names, make_front_door(chosen), seed=seed, samples=1))


def test_an_exception_fails_its_op_only(judged: list[Judged]) -> None:
    first, second, *_ = judged
    assert first.name == "no such op"
    assert first.fails
    assert "KeyError" in first.verdicts["forward"].reason
    assert not second.fails


def test_a_timeout_is_a_failure() -> None:
    (judged,) = sweep.sweep(["view"], make_front_door(), limit=0.01)
    assert "took longer" in judged.verdicts["forward"].reason


def test_no_op_of_a_slice_fails(judged: list[Judged]) -> None:
    assert not [item for item in judged[1:] if item.fails]


@pytest.fixture(scope="module")
def judged_exports(seed: int) -> list[Judged]:
    """A slice of all ops as exports, between guard pages."""
    names = [name for name in samples.ops() if name not in BROKEN_EXPORTS]
    chosen = draw_slice("exports", names, EXPORT_SLICE, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURBINE_GUARD", "1")
        return list(sweep.sweep(chosen, exported.FRONT_DOOR, seed=seed, samples=1))


def test_no_export_of_a_slice_fails(judged_exports: list[Judged]) -> None:
    assert not [item for item in judged_exports if item.fails]


@statuses
@pytest.mark.parametrize("name", BROKEN_EXPORTS)
def test_known_failing_exports_fail(name: str) -> None:
    verdicts = exported.judge(samples.ops()[name], samples=1)
    reasons = [verdict.reason for verdict in verdicts.values() if verdict.status == FAILS]
    assert reasons, "it is fixed: drop its row of BROKEN_EXPORTS"
    assert BROKEN_EXPORTS[name] in reasons[0]


@commands
def test_the_command_prints_counts_and_writes_the_page(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_here(monkeypatch)
    path = tmp_path / "coverage.md"
    assert (
        main(["coverage", "--ops", "^view$", "--forms", "spread", "--jobs", "1", "-o", str(path)])
        == 0
    )
    assert "forward" in capsys.readouterr().out
    assert "| `view` | free | free |" in path.read_text()


@commands
def test_the_command_judges_exports(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_here(monkeypatch)
    path = tmp_path / "exports.md"
    assert main(["coverage", "--export", "--ops", "^view$", "--jobs", "1", "-o", str(path)]) == 0
    assert "dynamic" in capsys.readouterr().out
    assert "| `view` | compiled | compiled |" in path.read_text()


class _Layer(torch.nn.Module):
    """A model that fixes its batch size if it is asked to."""

    def __init__(self, sizes: dict[str, Any]) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(sizes["width"], sizes["width"])
        self.is_static = sizes["is_static"]

    def forward(self, x: torch.Tensor, *, doubled: bool) -> dict[str, torch.Tensor]:
        y = self.linear(x) * (2 if doubled else 1)
        return {"y": y.view(2, -1) if self.is_static else y}


class _Package(ModuleType):
    """What is used of the transformers package."""

    __version__ = "1.0"

    def __getattr__(self, name: str) -> Any:
        return {"LayerConfig": dict, "LayerModel": _Layer}[name]


def _arguments(batch: int) -> dict[str, Any]:
    return {"x": torch.randn(batch, 4), "doubled": True}


def _architecture(*, is_static: bool) -> Architecture:
    sizes = {"width": 4, "is_static": is_static}
    return Architecture("encoders", "LayerConfig", sizes, "LayerModel", _arguments)


@pytest.fixture
def _fake_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", _Package("transformers"))
    rows = {"open": _architecture(is_static=False), "fixed": _architecture(is_static=True)}
    monkeypatch.setattr(architectures, "ARCHITECTURES", rows)


@commands
@pytest.mark.usefixtures("_fake_package")
def test_the_command_judges_architectures(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_here(monkeypatch)
    path = tmp_path / "coverage.md"
    path.write_text(f"# Coverage\n\n## {exported.FRONT_DOOR.title}\n\nas it was\n")
    assert main(["coverage", "--architectures", "--jobs", "1", "-o", str(path)]) == 0
    assert "architecture" in capsys.readouterr().out
    page = path.read_text()
    assert "as it was" in page
    assert "2 architectures of transformers 1.0" in page
    assert "| `open` | compiled | compiled |" in page
    assert "| `fixed` | compiled | not traced |" in page


def test_an_architecture_with_a_wrong_answer_fails() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "transformers", _Package("transformers"))
        patch.setattr(exported, "_compile", lambda case, axes: lambda x: [x])
        verdicts = architectures.judge(_architecture(is_static=False))
    assert {verdict.status for verdict in verdicts.values()} == {FAILS}


def test_a_model_that_cannot_be_built_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", _Package("transformers"))
    verdicts = architectures.judge(replace(_architecture(is_static=False), model="NoModel"))
    assert {verdict.status for verdict in verdicts.values()} == {NOT_TRACED}
    assert "NoModel" in verdicts[architectures.STATIC].reason


def test_architectures_without_the_package_are_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(["coverage", "--architectures"]) == 1
    assert "pip install turbine[models]" in capsys.readouterr().err


def test_one_kind_of_coverage_is_judged_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", "--architectures", "--export"]) == 1
    assert "--export with --architectures" in capsys.readouterr().err


def test_forms_of_arguments_to_exports_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", "--export", "--ops", "^view$", "--forms", "spread"]) == 1
    assert "--forms with exports" in capsys.readouterr().err


def test_an_unknown_form_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", "--ops", "^view$", "--forms", "transpose"]) == 1
    assert "valid: transposed" in capsys.readouterr().err


def test_an_unknown_op_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", "--ops", "^no such op$"]) == 1
    assert "no op has" in capsys.readouterr().err


def test_missing_op_samples_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.testing._internal.common_methods_invocations", None)
    with pytest.raises(errors.MissingExtra, match="op samples"):
        samples.ops()
