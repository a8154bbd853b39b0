"""Print a stage of a kernel: its graph, graph with bounds, plan, MLIR or assembly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import fx

from turbine import errors
from turbine.algebra import ONE, ZERO, Expr, Symbol
from turbine.compiler import host, pipeline
from turbine.dtypes import Dtype
from turbine.kernel.backends.iree.module import Code
from turbine.kernel.call.definition import Definition
from turbine.kernel.call.launcher import facts_of, write_main
from turbine.kernel.inspection import gpu_text
from turbine.kernel.lang.control_flow import Body, cond_op, for_op, output_of, result, while_op
from turbine.kernel.program import program as programs
from turbine.kernel.program.blocks import Block
from turbine.kernel.program.facts import Facts
from turbine.kernel.program.program import KernelProgram
from turbine.kernel.program.signature import Parameter
from turbine.kernel.trace.op import Op
from turbine.kernel.trace.types import DtypeSymbol, TileType, dtype_name
from turbine.kernel.trace.validity import Bound
from turbine.tables import table


@dataclass(frozen=True)
class View:
    """A kernel for some arguments: its program, and known facts about sizes."""

    program: KernelProgram
    facts: Facts
    chosen: Mapping[Symbol, Block]


def text(kernel: Definition, stage: str, args: Sequence[Any]) -> str:
    """Print a stage for these arguments; without any, for those of the last call."""
    if stage in gpu_text.STAGES:
        return gpu_text.STAGES[stage](kernel, args)
    if stage not in STAGES:
        raise errors.KernelError(errors.unknown("stage", stage, [*STAGES, *gpu_text.STAGES]))
    return STAGES[stage](view_for(kernel, args))


def view_for(kernel: Definition, args: Sequence[Any]) -> View:
    """The program for these arguments; without any, for those of the last call."""
    call = kernel.resolve_call(kernel.bind_arguments(args, {})) if args else kernel.last_call
    if call is not None:
        program, sizes, key = call
        facts = facts_of(program, sizes, dict(key.static))
        return View(program, facts, kernel.choice_of(call).blocks)
    _check_is_static(kernel)
    program = programs.trace(
        kernel.signature, kernel.signature.parameters, kernel.grid, kernel.function
    )
    facts = Facts(kernel.own_sizes(program), {}, program.ranges)
    return View(program, facts, kernel.choices.default_blocks(program, "cpu"))


def _check_is_static(kernel: Definition) -> None:
    """Raise if the program depends on arguments."""
    open_ = [p for p in kernel.signature.parameters if not is_static(p)]
    names = [str(p) for p in open_]
    names += [f"the size {name}" for name in sorted(kernel.specialized - kernel.blocks.keys())]
    if names:
        given = ", ".join(p.name for p in kernel.signature.passed)
        raise errors.KernelError(
            f"the program of {kernel.__name__} depends on its arguments: {', '.join(names)}",
            where=kernel.signature.place,
            hint=f"call it first, or pass them: {kernel.__name__}.text(stage, {given})",
        )


def is_static(parameter: Parameter) -> bool:
    """Whether a parameter is present, with one type, in every call."""
    return not parameter.is_optional and not isinstance(parameter.type.dtype, DtypeSymbol)


# The graph


def graph_text(view: View) -> str:
    """One line for each op with its result type; regions are indented."""
    return "\n".join(_Printer(view.program).lines())


def typed_text(view: View) -> str:
    """The graph with the bounds of each access, and whether they are proven."""
    return "\n".join(_Printer(view.program, view.facts).lines())


@dataclass
class _Printer:
    program: KernelProgram
    facts: Facts | None = None
    names: dict[fx.Node, str] = field(default_factory=dict)
    name_counts: dict[str, int] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        program = self.program
        yield f"kernel {program.name}"
        for parameter in program.parameters:
            yield f"  {parameter}"
        yield f"  grid {format_value(program.grid)}"
        if self.facts is not None:
            yield from (f"  {line}" for line in facts_lines(self.facts))
        for node in program.graph.nodes:
            if node.op == "placeholder":
                self.names[node] = str(node.target)
        yield from self.region(program.graph, "  ")

    def region(self, graph: fx.Graph, indent: str) -> Iterator[str]:
        for node in graph.nodes:
            if node.op == "call_function":
                for line in self.node(node):
                    yield indent + line

    def node(self, node: fx.Node) -> Iterator[str]:
        op = node.target
        assert isinstance(op, Op)
        type = node.meta.get("type")
        name = self.name(node, _KEYWORDS.get(op, op.name))
        given = f"{name}: {type} = " if isinstance(type, TileType) else ""
        head = _HEADS.get(op, _plain_head)(self, node)
        yield f"{given}{head}{_place(node)}"
        yield from (f"    {line}" for line in self.accesses(node))
        for label, body, around in _bodies(node):
            yield from self.body(label, body, around)

    def body(self, label: str, body: Body, around: Sequence[fx.Node]) -> Iterator[str]:
        places = [n for n in body.graph.nodes if n.op == "placeholder"]
        carried, captured = places[: body.carried], places[body.carried :]
        for place in carried:
            self.name(place, "carried")
        for place, outer in zip(captured, around, strict=True):
            self.names[place] = self.names[outer]
        types = ", ".join(f"{self.names[p]}: {p.meta['type']}" for p in carried)
        yield f"  {label}({types})"
        yield from self.region(body.graph, "    ")
        yield f"    yield {', '.join(self.names[node] for node in output_of(body.graph))}"

    def name(self, node: fx.Node, wanted: str) -> str:
        """A unique name for a node."""
        if node not in self.names:
            count = self.name_counts[wanted] = self.name_counts.get(wanted, 0) + 1
            self.names[node] = wanted if count == 1 else f"{wanted}_{count}"
        return self.names[node]

    def format(self, value: Any) -> str:
        return format_value(value, self.names)

    def accesses(self, node: fx.Node) -> Iterator[str]:
        """The bounds and masks of a node, and whether they are proven."""
        if self.facts is None:
            return
        for bounds, masks, shape in conditions(node):
            for bound in bounds:
                yield f"lanes {bound}: {proof(self.facts, bound, shape)}"
            for mask in masks:
                yield f"lanes where {self.names[mask]}"


def facts_lines(facts: Facts) -> Iterator[str]:
    """Known facts about sizes at compile time."""
    if facts.known:
        yield "in the code: " + ", ".join(f"{s} = {value}" for s, value in facts.known.items())
    if facts.divisors:
        yield "known: " + ", ".join(f"{s} % {d} == 0" for s, d in facts.divisors.items())


def conditions(node: fx.Node) -> Iterator[tuple[Sequence[Bound], Sequence[fx.Node], Any]]:
    """The bounds and masks of a node's operands, with their shapes."""
    bounds: Any = node.kwargs.get("bounds", ())
    masks: Any = node.kwargs.get("masks", ())
    if bounds and isinstance(bounds[0], tuple):  # of each operand
        first: Any = node.args[0]
        operands = first if isinstance(first, (tuple, list)) else node.args
        for operand, own, own_masks in zip(operands, bounds, masks, strict=False):
            if own or own_masks:
                yield own, own_masks, operand.meta["type"].shape
    elif bounds or masks:
        type = node.meta.get("type")
        tiles = [n for n in node.all_input_nodes if isinstance(n.meta.get("type"), TileType)]
        given = [n for n in tiles if n not in masks]
        shape = given[0].meta["type"].shape if given else type and type.shape
        yield bounds, masks, shape


def proof(facts: Facts, bound: Bound, shape: Sequence[Expr]) -> str:
    """Whether a bound is proven for every lane in every program, and by which facts."""
    asked = replace(facts, used=set())
    size = shape[bound.axis] if bound.axis is not None else ONE
    starts, ends = asked.starts_inside(bound), asked.ends_inside(bound, size)
    if not (starts and ends):
        open_ = [side for side, holds in (("start", starts), ("end", ends)) if not holds]
        return f"guarded at the {' and the '.join(open_)}"
    used = ", ".join(sorted(f"{s} % {facts.divisors[s]} == 0" for s in asked.used))
    return f"proven, as {used}" if used else "proven"


def _place(node: fx.Node) -> str:
    line = node.meta.get("line")
    return "" if line is None else f"  # {Path(line).name}"


def _plain_head(printer: _Printer, node: fx.Node) -> str:
    op = node.target
    assert isinstance(op, Op)
    around = [id(captured) for _, _, captured in _bodies(node)]
    given = [a for a in node.args if not isinstance(a, Body) and id(a) not in around]
    return f"{op.name}({', '.join(map(printer.format, given))})"


def _for_head(printer: _Printer, node: fx.Node) -> str:
    start, stop, step, init = node.args[:4]
    assert isinstance(node.args[4], Body)
    by = "" if step == 1 else f" by {step}"
    carrying = f" carrying {printer.format(init)}" if init else ""
    name = printer.names[node]
    limits = f"{printer.format(start)} to below {printer.format(stop)}"
    return f"{name}: for {node.args[4].counter} from {limits}{by}{carrying}"


def _while_head(printer: _Printer, node: fx.Node) -> str:
    return f"{printer.names[node]}: carrying {printer.format(node.args[2])}"


def _cond_head(printer: _Printer, node: fx.Node) -> str:
    condition, passed = node.args[:2]
    return f"{printer.names[node]}: if {printer.format(condition)} with {printer.format(passed)}"


def _result_head(printer: _Printer, node: fx.Node) -> str:
    return f"{printer.format(node.args[0])}[{node.args[1]}]"


_HEADS: dict[Op, Callable[[_Printer, fx.Node], str]] = {
    for_op: _for_head,
    while_op: _while_head,
    cond_op: _cond_head,
    result: _result_head,
}
_KEYWORDS = {for_op: "loop", while_op: "loop", cond_op: "branch"}
_LABELS = {"test": "while", "body": "do", "one": "then", "other": "else"}


def _bodies(node: fx.Node) -> list[tuple[str, Body, Any]]:
    """The regions of a node; the argument after a region lists its captured nodes."""
    assert isinstance(node.target, Op)
    names, args = list(node.target.signature.parameters), tuple[Any, ...](node.args)
    return [
        (_LABELS.get(name, name), body, around)
        for name, body, around in zip(names, args, args[1:], strict=False)
        if isinstance(body, Body)
    ]


def format_value(value: Any, names: dict[fx.Node, str] | None = None) -> str:
    """Format a value of a graph."""
    if isinstance(value, fx.Node):
        return value.name if names is None else names[value]
    if isinstance(value, (tuple, list)):
        listed = ", ".join(format_value(part, names) for part in value)
        return f"({listed},)" if len(value) == 1 else f"({listed})"
    return dtype_name(value) if isinstance(value, Dtype) else str(value)


# Code


def code_of(view: View) -> tuple[Code, Facts]:
    """The code, and the facts about sizes that it relies on."""
    facts = replace(view.facts, used=set())
    return write_main(view.program, facts), facts


def mlir_text(view: View) -> str:
    """The MLIR module before compilation."""
    return code_of(view)[0].text


def plan_text(view: View) -> str:
    """The plan of the code: fused ops, scratch buffers, register tiles."""
    code, facts = code_of(view)
    printer = _Printer(view.program, facts)
    head = list(printer.lines())[: 2 + len(view.program.parameters)]  # this names the ops
    head += [f"  {line}" for line in facts_lines(facts)]
    head += [f"  {s} = {block.size}: {block.why}" for s, block in view.chosen.items()]
    stack, heap = code.stack_bytes, sum((part.bytes for part in code.scratch), start=ZERO)
    head.append(f"  at most {code.workgroups} workgroups, each with {stack} B on the stack")
    if heap != ZERO:
        head[-1] += f" and {heap} B in the heap"
    fused = _Fused(view.program, {step.node for step in code.steps if not step.has_code})
    rows = [("op", "computes", "keeps", "scratch", "notes")]
    for step in code.steps:
        if step.has_code:
            inlined = ", ".join(printer.names[node] for node in fused.operands(step.node))
            scratch = [
                f"{size} B {where}"
                for size, where in ((step.stack, "stack"), (step.heap, "heap"))
                if size != ZERO
            ]
            rows.append(
                (
                    "  " * step.depth + printer.names[step.node],
                    inlined,
                    str(step.node.meta.get("type") or ""),
                    ", ".join(scratch),
                    "; ".join(dict.fromkeys(step.notes)),
                )
            )
    return "\n".join([*head, "", table(rows)])


@dataclass
class _Fused:
    """Ops that are fused into their users, also across regions."""

    program: KernelProgram
    nodes: set[fx.Node]
    outer: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in programs.nodes_of(self.program.graph):
            for _, body, around in _bodies(node) if node.op == "call_function" else ():
                places = [n for n in body.graph.nodes if n.op == "placeholder"]
                passed: Any = node.args[1] if node.target is cond_op else ()
                taken = places if passed else places[body.carried :]
                self.outer.update(zip(taken, [*passed, *around], strict=True))

    def operands(self, node: fx.Node) -> list[fx.Node]:
        """The ops that are fused into a node, in program order."""
        found: dict[fx.Node, None] = {}
        for operand in node.all_input_nodes:
            source = self.outer.get(operand, operand)
            if source in self.nodes:
                found |= dict.fromkeys([*self.operands(source), source])
        return list(found)


def assembly_text(view: View) -> str:
    """The assembly for the configured target."""
    return pipeline.assembly_of(mlir_text(view).encode(), host.default_target())


STAGES: dict[str, Callable[[View], str]] = {
    "fx": graph_text,
    "typed": typed_text,
    "plan": plan_text,
    "mlir": mlir_text,
    "asm": assembly_text,
}
