"""Choose block sizes and options for calls: what was given, what was tuned, or the default."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turbine import errors
from turbine.algebra import Symbol
from turbine.capture.sizes import hint
from turbine.kernel.backends.triton.schedule import Options
from turbine.kernel.call import configuration as configurations
from turbine.kernel.call import tuning_table
from turbine.kernel.call.configuration import blocks_of, options_of
from turbine.kernel.call.machines import Machine
from turbine.kernel.call.tuning_table import Case, Row, TuningTable, class_of, read_table
from turbine.kernel.program.blocks import Block, choose_blocks
from turbine.kernel.program.program import KernelProgram
from turbine.kernel.program.signature import KernelSignature
from turbine.kernel.program.symbolic_sizes import Sizes

# Names of arguments and their dtypes; names of sizes and their classes.
Types = tuple[tuple[str, str], ...]
# Candidates for `kernel.tune`, or the path of a table.
Tune = Iterable[Mapping[Any, int]] | str | Path


@dataclass(frozen=True)
class Choice:
    """The block sizes of a call that a user left open, its options, and where they come from."""

    blocks: Mapping[Symbol, Block]
    options: Options
    source: str  # "given", "default", "tuned", or a table

    @property
    def sizes(self) -> dict[Symbol, int]:
        """The block sizes without reasons."""
        return {symbol: block.size for symbol, block in self.blocks.items()}


@dataclass
class Choices:
    """What is chosen for the calls of a kernel."""

    signature: KernelSignature
    given: Mapping[str, int]  # by blocks= and using()
    table: TuningTable | None = None
    uses_tuned: bool = True
    known: dict[tuple[Any, ...], Choice] = field(default_factory=dict)

    def default_blocks(self, program: KernelProgram, device: str) -> dict[Symbol, Block]:
        """The default of block sizes that the user left open, with reasons."""
        chosen = choose_blocks(program, self.signature.size_symbols, device)
        return {s: block for s, block in chosen.items() if s.name not in self.given}

    def of_call(
        self,
        program: KernelProgram,
        types: Types,
        sizes: Sizes,
        device: str,
        machine: Callable[[], Machine],
    ) -> Choice:
        """The choice for a call of these types and sizes on a kind of device."""
        default = self._default(program, device)
        if not self.uses_tuned or not (default.blocks or device != "cpu"):
            return default
        here = machine()
        case = self.case_of(program, types, sizes, here)
        key = case, here
        if key not in self.known:
            self.known[key] = self._tuned(case, here, default, program) or default
        return self.known[key]

    def _default(self, program: KernelProgram, device: str) -> Choice:
        blocks = self.default_blocks(program, device)
        source = "given" if self.given and not blocks else "default"
        return Choice(blocks, options_of(self.given), source)

    def case_of(self, program: KernelProgram, types: Types, sizes: Sizes, here: Machine) -> Case:
        """What configurations for such calls are kept by; dynamic sizes are the example's."""
        inferred = {*self.signature.size_symbols}
        known = [(s.name, size) for s, size in sizes.items() if s in inferred]
        classes = tuple(sorted((name, class_of(hint(size))) for name, size in known))
        given = tuple(sorted(self.given.items()))
        return Case(self.signature.kernel, program.digest, here.name, types, classes, given)

    def _tuned(
        self, case: Case, here: Machine, default: Choice, program: KernelProgram
    ) -> Choice | None:
        """What this process tuned, then what the table has, then what the cache has."""
        row, source = tuning_table.measured_here(case, here), "tuned"
        if row is None and self.table is not None:
            row, source = self.table.find(case, here), f"from {self.table.path.name}"
            if row is not None:
                self._check_row(row, program)
                if row.case.program != case.program:
                    source += ", for another version of the kernel"
        if row is None:
            row, source = tuning_table.recall(case, here), "tuned"
        if row is None:
            return None
        sizes = blocks_of(row.configuration)
        if not sizes.keys() <= {symbol.name for symbol in default.blocks}:
            return None
        blocks = {
            symbol: Block(sizes[symbol.name], source) if symbol.name in sizes else block
            for symbol, block in default.blocks.items()
        }
        options = {} if here.kind == "cpu" else row.configuration
        return Choice(blocks, options_of({**options, **self.given}), source)

    def _check_row(self, row: Row, program: KernelProgram) -> None:
        configurations.parse(self.signature, row.configuration)
        check_used(self.signature, row.configuration, program)


def parse_tune(
    signature: KernelSignature, tune: Tune | None
) -> tuple[list[dict[str, int]] | None, TuningTable | None]:
    """Candidates, or the table of a file; its path is relative to the kernel's file."""
    if tune is None:
        return None, None
    if isinstance(tune, (str, Path)):
        folder = Path((signature.place or "").rpartition(":")[0]).parent
        return None, read_table(folder / tune, signature.kernel, signature.place)
    return parse_candidates(signature, tune), None


def parse_candidates(signature: KernelSignature, given: Any) -> list[dict[str, int]]:
    """The configurations to try, of which there is at least one."""
    is_listed = isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping))
    listed = list(given) if is_listed else []
    wrong = [one for one in listed if not isinstance(one, Mapping)]
    if not listed or wrong:
        what = f"a candidate is {wrong[0]!r}" if wrong else f"no candidates to tune in {given!r}"
        raise errors.KernelError(
            f"{signature.kernel}: {what}",
            where=signature.place,
            hint="list configurations, such as [{'BM': 64, 'num_warps': 4}], or leave them out",
        )
    return [configurations.parse(signature, one) for one in listed]


def check_used(
    signature: KernelSignature, configuration: Mapping[str, int], program: KernelProgram
) -> None:
    """Raise for names that are neither sizes of the kernel nor options."""
    names = {*(symbol.name for symbol in program.size_symbols), *configurations.OPTIONS}
    for name in configuration:
        if name not in names:
            raise errors.KernelError(
                errors.unknown(f"size of kernel {signature.kernel}", name, names),
                where=signature.place,
                hint="blocks=, using() and tuning set symbols of a kernel, and num_warps, "
                "num_stages and group_rows of GPUs",
            )
