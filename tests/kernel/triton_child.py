"""Run emitted Triton source on CPU tensors: this module is a child process with TRITON_INTERPRET=1.

It reads pickled requests and writes pickled answers. Functions of libdevice, which Triton's
interpreter lacks, are those of NumPy and PyTorch.
"""

from __future__ import annotations

import io
import linecache
import pickle
import sys
import traceback
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch


def main() -> None:
    """Answer requests until the parent closes the pipe."""
    warnings.simplefilter("ignore")
    patch_loop_limits()
    out = sys.stdout.buffer
    sys.stdout = sys.stderr
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        text, name, values, programs = unpack(request)
        try:
            run(text, name, values, programs)
            answer: Any = [value for value in values if isinstance(value, torch.Tensor)]
        except Exception:
            answer = traceback.format_exc()
        pickle.dump(pack(answer), out)
        out.flush()


def pack(value: Any) -> bytes:
    """A value as bytes: pickle alone has no tensors of unsigned integers."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def unpack(data: bytes) -> Any:
    """The value of bytes from `pack`."""
    return torch.load(io.BytesIO(data), weights_only=False)


def patch_loop_limits() -> None:
    """Let `range` take computed limits: NumPy converts arrays without axes only."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def run(text: str, name: str, values: list[Any], programs: int) -> None:
    """Run the programs of a kernel one by one; tensors are updated in place."""
    file = f"<{name} {abs(hash(text))}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space: dict[str, Any] = {"__name__": f"interpreted_{name}"}
    exec(compile(text, file, "exec"), space)
    space["libdevice"] = LIBDEVICE
    if programs:
        space[name][(programs,)](*values)


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*operands: Any) -> Any:
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        first = next(one for one in operands if isinstance(one, tl.tensor))
        arrays = [one.handle.data if isinstance(one, tl.tensor) else one for one in operands]
        result = np.asarray(function(*arrays), dtype=first.handle.data.dtype)
        shape = [int(size) for size in result.shape]
        type = tl.block_type(first.dtype, shape) if first.type.is_block() else first.dtype
        return tl.tensor(TensorHandle(result, first.dtype.scalar), type)

    return apply


LIBDEVICE = SimpleNamespace(
    **{
        name: _elementwise(function)
        for name, function in {
            "exp": np.exp,
            "expm1": np.expm1,
            "log": np.log,
            "log2": np.log2,
            "log1p": np.log1p,
            "tanh": np.tanh,
            "sin": np.sin,
            "cos": np.cos,
            "pow": np.power,
            "rint": np.rint,
            "trunc": np.trunc,
            "fmod": np.fmod,
            "copysign": np.copysign,
        }.items()
    }
)

if __name__ == "__main__":
    main()
