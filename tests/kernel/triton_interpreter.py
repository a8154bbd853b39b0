"""Run kernels as GPUs would, in Triton's interpreter, on CPU tensors."""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tests.kernel.triton_child import pack, unpack
from turbine.algebra import Symbol
from turbine.kernel.backends.triton import module
from turbine.kernel.call.definition import Definition
from turbine.kernel.call.gpu_launcher import GpuVariant, layout_of
from turbine.kernel.call.launcher import facts_of, separate_inputs
from turbine.kernel.program.program import KernelProgram


@cache
def triton_interpreter() -> TritonInterpreter:
    """The child of this process."""
    made = TritonInterpreter()
    atexit.register(made.close)
    return made


class TritonInterpreter:
    """A child process that runs Triton source; the environment variable is read at import."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.kernel.triton_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"},
        )

    def close(self) -> None:
        """End the child."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def call(self, kernel: Definition, *args: Any, **keywords: Any) -> Any:
        """The outputs of a kernel; in-out arguments are updated."""
        named = kernel.bind_arguments(args, keywords)
        program, sizes, key = kernel.resolve_call(named, "cuda")
        outputs = list(self.run(program, sizes, dict(key.static), named).values())
        return outputs[0] if len(outputs) == 1 else tuple(outputs) or None

    def run(
        self,
        program: KernelProgram,
        sizes: Mapping[Symbol, int],
        static: Mapping[str, int],
        named: Mapping[str, Any],
    ) -> dict[str, Tensor]:
        """Run a program; returns its outputs by name."""
        separate = separate_inputs(program, named).items()
        given = {n: _plain(value) for n, value in separate if value is not None}
        facts = facts_of(program, sizes, static)
        code = module.write(program, facts, layout_of(program, facts, sizes, given))
        variant = GpuVariant(program, {}, code, None)
        values, new_tensors, programs = variant.arguments_of_call(given, sizes)
        for place, name in variant.passed_places(given):
            values[place] = given[name]
        for one in new_tensors:
            values[one.place] = one.allocate(torch.device("cpu"))
        values = [_as_bytes(value) for value in values]
        changed = {one.place for one in new_tensors}
        written = {p.name for p in program.of_usage("inout")}
        changed |= {place for place, name in variant.passed_places(given) if name in written}
        answers = iter(self._ask(code.text, code.name, values, programs))
        for place, value in enumerate(values):
            if isinstance(value, Tensor):
                answer = next(answers)
                if place in changed:
                    value.copy_(answer)
        variant.deliver({one.kind: values[one.place] for one in new_tensors}, sizes)
        outputs = {o.name: values[o.place].view(o.dtype) for o in new_tensors if o.kind == "output"}
        return {p.name: outputs[p.name] for p in program.of_usage("output")}

    def _ask(self, text: str, name: str, values: list[Any], programs: int) -> list[Tensor]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pickle.dump(pack((text, name, values, programs)), self.process.stdin)
        self.process.stdin.flush()
        answer = unpack(pickle.load(self.process.stdout))
        if isinstance(answer, str):
            raise AssertionError(f"{answer}\n{text}")
        found: list[Tensor] = answer
        return found


def _as_bytes(value: Any) -> Any:
    """Floats of 8 bits as the code takes them: those that GPUs lack are bytes."""
    is_bytes = isinstance(value, Tensor) and "fnuz" in str(value.dtype)
    return value.view(torch.uint8) if is_bytes else value


def _plain(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value
