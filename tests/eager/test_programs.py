"""Ops are recorded and run as programs: what is fused, what is compiled, and when."""

from __future__ import annotations

import copy
import gc
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import turbine
from turbine import config
from turbine.eager import programs, recorder, trace_tree
from turbine.eager.programs import Code

slow = pytest.mark.sweep(2, "slow")


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    turbine.eager.enable()
    torch.turbine.synchronize()  # type: ignore[attr-defined]
    turbine.eager.wait()
    monkeypatch.setattr(programs, "codes", {})
    monkeypatch.setattr(programs, "_families", {})
    recorder.ends.clear()
    recorder._history.clear()
    recorder._trace.period = 0
    yield
    turbine.eager.wait()


def forget() -> None:
    """Forget first calls: PyTorch infers shapes in them, and may keep tensors in cycles."""
    gc.collect()
    programs.codes.clear()
    programs._families.clear()


def only_code() -> Code:
    found = list(programs.codes.values())
    assert len(found) == 1, found
    return found[0]


def test_ops_are_one_program_that_is_compiled_once() -> None:
    def compute(x: Tensor) -> Tensor:
        return (torch.nn.functional.gelu(x @ x.T + 1) * 2).sum(0)

    x = torch.randn(64, 32)
    y = x.to("turbine")
    compute(y).cpu()
    forget()
    for turn in range(4):
        torch.testing.assert_close(compute(y).cpu(), compute(x), rtol=1e-4, atol=1e-4)
        if turn == 1:
            turbine.eager.wait()
    code = only_code()
    assert code.state == "compiled", code.reason
    assert code.calls == {"compiled": 2, "in PyTorch": 2}
    assert len(code.ops) == 6
    report = str(turbine.eager.explain())
    assert "compiled" in report
    assert "1 gelu" in report


def test_values_that_nobody_holds_are_not_made() -> None:
    x = torch.ones(8).to("turbine")
    ((x + 1) * 2).tolist()
    forget()
    a = x + 1
    b = a * 2
    del a
    program = recorder._trace.program()
    assert len(program.ops) == 2
    assert program.outputs == (1,)
    assert b.tolist() == [4.0] * 8


@slow
def test_a_number_that_changes_makes_no_other_program() -> None:
    x = torch.ones(100).to("turbine")
    (x * 0.5 + 1).mean().item()
    forget()
    for step in range(1, 6):
        assert (x * (0.5 / step) + step).mean().item() == pytest.approx(0.5 / step + step)
        turbine.eager.wait()
    code = only_code()
    assert code.calls == {"compiled": 3, "in PyTorch": 2}


@slow
def test_a_number_that_changes_late_is_compiled_once_more() -> None:
    x = torch.ones(100).to("turbine")
    (x * 0.5 + 1).mean().item()
    forget()
    for number in (2.0, 2.0, 2.0, 3.0, 3.0, 4.0, -0.0, 0.0):
        found = (1.0 / (x * number + 0.0)).mean().item()
        assert found == (1.0 / (torch.ones(100) * number + 0.0)).mean().item()
        turbine.eager.wait()
    code = only_code()
    assert code.compiles == 2
    assert code.calls["compiled"] >= 5


SIZES = [32, 48, 20, 33, 7, 1, 0, 2, 48]


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.sin() * 2 + 1).relu().sum(0),
        lambda x: x.view(x.shape[0], 4, 4).transpose(1, 2).reshape(-1, 4).softmax(-1),
        lambda x: (x @ x.T).relu().reshape(-1) + torch.zeros(len(x) * len(x), device=x.device),
        lambda x: torch.cat([x, x]).mean(1) + torch.arange(2 * len(x), device=x.device),
        lambda x: x[: len(x) // 2].cumsum(0),
    ],
)
def test_programs_that_differ_in_sizes_match_the_cpu(function: Any) -> None:
    torch.manual_seed(0)
    for size in SIZES:
        x = torch.randn(size, 16)
        torch.testing.assert_close(
            function(x.to("turbine")).cpu(), function(x), rtol=1e-4, atol=1e-4
        )
        turbine.eager.wait()


@slow
def test_programs_that_differ_in_sizes_share_code() -> None:
    def compute(x: Tensor) -> Tensor:
        return (x.tanh().reshape(-1, 4) * 3 + 1).relu().sum(1)

    compute(torch.randn(64, 16).to("turbine")).cpu()
    forget()
    for size in (64, 32, 48, 21, 63):
        x = torch.randn(size, 16)
        torch.testing.assert_close(compute(x.to("turbine")).cpu(), compute(x))
        turbine.eager.wait()
    ran = {id(code): code for code in programs.codes.values()}.values()
    assert [sum(code.calls.values()) for code in ran] == [1, 4]


@slow
def test_a_cache_that_grows_shares_code() -> None:
    def decode(steps: int, device: str) -> list[float]:
        cache, found = torch.ones(2, 8).to(device), []
        for step in range(steps):
            new = torch.full((1, 8), 0.5).to(device) * step
            cache = torch.cat([cache, new])
            weights = (cache @ cache[-1]).softmax(0)
            found.append((weights @ cache).square().sum().item())
            turbine.eager.wait()
        return found

    decode(2, "turbine")
    forget()
    assert decode(9, "turbine") == pytest.approx(decode(9, "cpu"), rel=1e-4)
    # Products of few rows and of many may be different code.
    assert len({id(code) for code in programs.codes.values()}) <= 4


def test_factories_end_no_program() -> None:
    x = torch.ones(4).to("turbine") * 2
    torch.arange(5, device="turbine")
    torch.linspace(0, 1, 3, device="turbine")
    torch.eye(3, device="turbine")
    torch.randperm(4, device="turbine")
    torch.zeros(2, device="turbine")
    assert x._storage.value.data is None  # type: ignore[attr-defined]
    assert not recorder.ends


def test_optimizers_update_all_weights_in_one_program() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).to("turbine")
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(8, 4).to("turbine")
    for _ in range(3):
        model(x).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert not recorder.ends
    names = "\n".join(recorder.pending())
    assert "_foreach_addcdiv" in names


def test_lists_that_share_tensors_are_updated_in_order() -> None:
    for places in (([0, 1], [1, 0]), ([0, 0], [1, 1])):
        found = []
        for device in ("cpu", "turbine"):
            both = [torch.ones(3).to(device), torch.full((3,), 2.0).to(device)]
            torch._foreach_add_(*([both[place] for place in one] for one in places))
            found.append([one.tolist() for one in both])
        assert found[0] == found[1]


def test_kinds_of_numbers_are_kept_apart() -> None:
    x = torch.arange(3, device="turbine")
    assert (x * 1).dtype == torch.int64
    assert (x * 1.0).dtype == torch.float32
    assert (x * True).dtype == torch.int64
    y = torch.ones(2, device="turbine", dtype=torch.bfloat16)
    assert [(y * number).sum().item() for number in (1.5, 2.5)] == [3.0, 5.0]


def train(model: nn.Module, x: Tensor, steps: int) -> list[Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


@slow
def test_a_loop_that_reads_nothing_repeats_one_program() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 1))
    x = torch.randn(4, 8)
    expected = train(copy.deepcopy(model), x, 60)
    found = train(model.to("turbine"), x.to("turbine"), 60)
    torch.testing.assert_close([one.cpu() for one in found], expected, rtol=1e-4, atol=1e-5)
    runs = sorted(sum(code.calls.values()) for code in programs.codes.values())
    assert runs[-1] >= 20
    assert len(runs) <= 5


def test_an_op_whose_size_depends_on_values_runs_by_itself() -> None:
    x = torch.tensor([0.0, 2.0, 0.0, 3.0], device="turbine")
    turbine.eager.ops.fallbacks.clear()
    with pytest.warns(UserWarning, match=r"nonzero\S* runs in PyTorch by itself"):
        found = (x + 0).nonzero()
    assert found.tolist() == [[1], [3]]
    assert turbine.eager.fallbacks() == {
        "aten.nonzero.default": "the size of its result depends on values"
    }


def test_a_program_that_does_not_compile_runs_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr("turbine.dynamo.backend", refuse)
    x = torch.ones(3).to("turbine")
    (x + 1).tolist()
    forget()
    for _ in range(3):
        assert (x + 1).tolist() == [2.0, 2.0, 2.0]
        turbine.eager.wait()
    code = only_code()
    assert (code.state, code.reason) == ("in PyTorch", "RuntimeError: no compiler here")
    assert "no compiler here" in str(turbine.eager.explain())


@slow
def test_code_that_fails_runs_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3).to("turbine")
    (x + 1).tolist()
    forget()
    for _ in range(2):
        assert (x + 1).tolist() == [2.0, 2.0, 2.0]
    turbine.eager.wait()
    code = only_code()
    assert code.state == "compiled"

    def fail(*_: object) -> None:
        raise RuntimeError("it failed")

    monkeypatch.setattr(code, "call", fail)
    assert (x + 1).tolist() == [2.0, 2.0, 2.0]
    assert code.state == "in PyTorch"


def test_ops_run_one_by_one_for_debugging() -> None:
    config.set(eager="op")
    y = torch.ones(3, device="turbine") + 1
    assert turbine.eager.trace() == ""
    assert y.tolist() == [2.0, 2.0, 2.0]
    assert {code.state for code in programs.codes.values()} <= {"new"}


def test_exceptions_keep_the_order_of_the_program() -> None:
    x = torch.zeros(3, device="turbine")
    x += 1
    with pytest.raises(RuntimeError):
        x += torch.ones(4, device="turbine")
    x *= 3
    assert x.tolist() == [3.0, 3.0, 3.0]


def test_an_op_that_raises_when_it_runs_loses_no_other_value() -> None:
    x = torch.arange(3.0).to("turbine")
    before, bad = x + 1, x[torch.tensor([5]).to("turbine")]
    after, worse = before * 2, bad + 1
    with pytest.raises(IndexError):
        before.tolist()
    assert before.tolist() == [1.0, 2.0, 3.0]
    assert after.tolist() == [2.0, 4.0, 6.0]
    with pytest.raises(IndexError):
        worse.tolist()
    with pytest.raises(IndexError):
        worse * 2
    assert (x + 1).tolist() == [1.0, 2.0, 3.0]


def line_of(text: str) -> str:
    number = 1 + inspect.getsource(inspect.getmodule(line_of)).splitlines().index(text)  # type: ignore[arg-type]
    return f"{__file__}:{number}"


def test_lines_of_the_users_code_are_named() -> None:
    x = torch.arange(3.0).to("turbine")
    y = (x + 1) * 2.5  # recorded
    where = line_of("    y = (x + 1) * 2.5  # recorded")
    assert turbine.eager.trace().splitlines()[-1] == (
        f"%1 = aten.mul.Tensor(%0, 2.5) -> float32[3]  # {where}"
    )
    for _ in range(3):
        torch.linalg.eigvalsh(torch.outer(y, y)).sum().item()  # not compiled
        turbine.eager.wait()
    where = line_of("        torch.linalg.eigvalsh(torch.outer(y, y)).sum().item()  # not compiled")
    assert f"in PyTorch: aten._linalg_eigh.default at {where}: " in str(turbine.eager.explain())
    bad = x[torch.tensor([5]).to("turbine")]  # out of bounds
    where = line_of('    bad = x[torch.tensor([5]).to("turbine")]  # out of bounds')
    with pytest.raises(IndexError) as caught:
        bad.tolist()
    assert caught.value.__notes__ == [f"aten.index.Tensor was called at {where}"]


def test_an_interrupted_run_loses_only_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3).to("turbine")
    y = x + 1

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(programs, "run", interrupt)
        with pytest.raises(KeyboardInterrupt):
            y.tolist()
    with pytest.raises(turbine.errors.RunError, match="was interrupted"):
        y.tolist()
    with pytest.raises(turbine.errors.RunError, match="was interrupted"):
        y + 1
    assert (x + 1).tolist() == [2.0, 2.0, 2.0]


@slow
def test_a_large_tree_of_ops_is_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3).to("turbine")
    (x + 1).tolist()
    forget()
    for _ in range(2):
        assert (x + 1).tolist() == [2.0, 2.0, 2.0]
    monkeypatch.setattr(trace_tree, "_MOST_NODES", 50)
    monkeypatch.setattr(trace_tree, "_node_count", 0)
    for number in range(100):
        assert (x + 1)[number % 3].item() == 2.0
        assert torch.full((number,), 1.0, device="turbine").sum().item() == number
    assert trace_tree._node_count <= 60
    assert (x + 1).tolist() == [2.0, 2.0, 2.0]
