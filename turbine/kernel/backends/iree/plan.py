"""Record decisions of code generation, for `kernel.text("plan")` and tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import fx

from turbine.algebra import ZERO, Expr
from turbine.mlir.writer import Writer


@dataclass
class Step:
    """How one op is compiled.

    An op without code of its own is fused into its users.
    """

    node: fx.Node
    depth: int  # nesting in loops and branches of the kernel
    has_code: bool = False
    stack: Expr = ZERO  # bytes of scratch buffers
    heap: Expr = ZERO
    notes: list[str] = field(default_factory=list)  # which algorithm, and why


@dataclass
class Plan:
    """The steps of a kernel, in the order of its code."""

    steps: dict[fx.Node, Step] = field(default_factory=dict)
    around: list[Step] = field(default_factory=list)

    @contextmanager
    def step(self, node: fx.Node, w: Writer) -> Iterator[None]:
        """Enter the code of a node."""
        step = self.steps[node] = Step(node, len(self.around))
        self.around.append(step)
        start = len(w.lines)
        try:
            yield
        finally:
            step.has_code |= any(_is_more_than_arithmetic(line) for line in w.lines[start:])
            self.around.pop()

    def compute(self, node: fx.Node, *why: str) -> None:
        """Note that a node has code of its own, perhaps written for a later node."""
        step = self.steps.setdefault(node, Step(node, len(self.around)))
        step.has_code = True
        step.notes += why

    def note(self, text: str) -> None:
        """Note a decision about the current node."""
        self.around[-1].notes.append(text)

    def allocate(self, bytes: Expr, *, node: fx.Node | None, on_stack: bool) -> None:
        """Note a scratch buffer of a node, or of the current one."""
        if node is None and not self.around:
            return  # a TemporaryBuffer, which is a parameter of the kernel
        step = self.around[-1] if node is None else self.steps[node]
        if on_stack:
            step.stack += bytes
        else:
            step.heap += bytes


def _is_more_than_arithmetic(line: str) -> bool:
    """Whether a line is a loop, a branch or an access; index arithmetic alone does not count."""
    return any(dialect in line for dialect in ("scf.", "memref.", "vector."))
