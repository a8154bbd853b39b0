"""The policy of a thread that waits for worker threads."""

from __future__ import annotations

import os
import threading

import pytest
import torch

import turbine
from turbine.runtime import scheduling


def test_only_this_thread_changes_and_only_for_a_while() -> None:
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    assert scheduling.stop_preempting()
    try:
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
        assert os.sched_getscheduler(other.native_id or 0) == os.SCHED_OTHER
    finally:
        scheduling.preempt_again()
        end.set()
        other.join()
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_policy_of_the_users_stays() -> None:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        assert not scheduling.stop_preempting()
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def test_a_forbidden_change_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert not scheduling.stop_preempting()


def test_a_call_with_worker_threads_waits_with_the_batch_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    restore = scheduling.preempt_again

    def watch() -> None:
        seen.append(os.sched_getscheduler(0))
        restore()

    monkeypatch.setattr(scheduling, "preempt_again", watch)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    model, x = torch.nn.Linear(512, 512), torch.randn(512, 512)
    turbine.aot.export(model, args=(x,)).compile()(x)
    assert seen == [os.SCHED_BATCH]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    turbine.aot.export(torch.nn.Tanh(), args=(torch.ones(2),)).compile()(torch.ones(2))
    assert len(seen) == 1
