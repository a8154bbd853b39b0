"""A failing case as a script that pastes into an issue."""

from __future__ import annotations

from turbine.fuzz.case import COMPILE, COMPILE_DYNAMIC, EXPORT, EXPORT_DYNAMIC, KERNEL, Case


def script(case: Case, problem: str) -> str:
    """A complete program that raises where the case fails."""
    program = case.program
    sections = [
        f"# {case.mode}: {problem}\n{program.frame.imports}",
        *_setup(case),
        _arguments(case),
        program.function_code().rstrip(),
        _COMPARE,
        _RUN[case.mode].format(sizes=_sizes(case), shapes=_shapes(case)),
    ]
    return "\n\n\n".join(sections) + "\n"


def _setup(case: Case) -> list[str]:
    options = ["guard=True"] if case.guard else []
    if case.mode in (COMPILE, COMPILE_DYNAMIC):
        # Otherwise torch.compile hides a fault by running the part in PyTorch.
        options += ["raise_faults=True", f'library_calls="{case.library_calls}"']
    if options:
        return [f"import turbine\n\nturbine.config.set({', '.join(options)})"]
    return [] if case.mode == KERNEL else ["import turbine"]


def _arguments(case: Case) -> str:
    """A function that makes new arguments, for each size of the dynamic axis."""
    lines = ["def arguments(size=None):", f"    torch.manual_seed({case.program.seed})"]
    for name, spec in zip(case.program.arguments, case.program.inputs, strict=True):
        code = spec.code()
        if case.other_size is not None and spec.dynamic is not None:
            code = f"{code} if size is None else {spec.resize(case.other_size).code()}"
        lines.append(f"    {name} = {code}")
    return "\n".join([*lines, f"    return {', '.join(case.program.arguments)},"])


def _sizes(case: Case) -> str:
    return "(None, None)" if case.other_size is None else f"(None, None, {case.other_size})"


def _shapes(case: Case) -> str:
    shapes = [
        "{}" if spec.dynamic is None else f"{{{spec.dynamic}: torch.export.Dim.AUTO}}"
        for spec in case.program.inputs
    ]
    return f"(({', '.join(shapes)},),)"


_COMPARE = """
def answer(run, args):
    results = run(*args)
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    trained = [x for x in args if x.requires_grad]
    ends = [r for r in results if r.requires_grad]
    starts = [torch.linspace(-1, 1, r.numel()).reshape(r.shape).to(r.dtype) for r in ends]
    grads = torch.autograd.grad(ends, trained, starts, allow_unused=True) if ends else ()
    return [x.detach() for x in (*results, *grads, *args) if x is not None]
""".strip()
_COMPILE = """
compiled = torch.compile(f, backend="turbine", dynamic={dynamic})
for size in {{sizes}}:
    expected = answer(f, arguments(size))
    torch.testing.assert_close(answer(compiled, arguments(size)), expected, equal_nan=True)
""".strip()
_EXPORT = """
class Model(torch.nn.Module):
    def forward(self, *args):
        return f(*args)


artifact = turbine.aot.export(Model(), args=arguments(){shapes}).compile()
for size in {{sizes}}:
    expected = answer(f, arguments(size))
    torch.testing.assert_close(answer(artifact, arguments(size)), expected, equal_nan=True)
""".strip()
_KERNEL = """
expected = answer(f.interpret, arguments())
torch.testing.assert_close(answer(f, arguments()), expected, equal_nan=True)
""".strip()
_RUN = {
    COMPILE: _COMPILE.format(dynamic=False),
    COMPILE_DYNAMIC: _COMPILE.format(dynamic=True),
    EXPORT: _EXPORT.format(shapes=""),
    EXPORT_DYNAMIC: _EXPORT.format(shapes=", dynamic_shapes={shapes}"),
    KERNEL: _KERNEL,
}
