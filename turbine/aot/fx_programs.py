"""Several entry points over one root module: functions in, a named set of ExportedPrograms out."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from turbine import errors
from turbine.aot.compiled_module import ExportTargetDef
from turbine.capture.model import export_program
from turbine.capture.program import Devices
from turbine.capture.weights import identity
from turbine.runtime import container
from turbine.runtime.artifact import name_problem

INDEX_SUFFIX = ".json"
_FORMAT = 1


class FxPrograms:
    """Programs by name. Tensors that several of them hold are saved, and exported, once.

    >>> import torch, turbine
    >>> builder = turbine.aot.FxProgramsBuilder(torch.nn.Linear(4, 2))
    >>> @builder.export_program(args=(torch.ones(3, 4),))
    ... def forward(module, x):
    ...     return module(x)
    >>> @builder.export_program(args=(torch.ones(3, 4),))
    ... def doubled(module, x):
    ...     return 2 * module(x)
    >>> artifact = turbine.aot.export(builder).compile()
    >>> artifact.doubled(torch.ones(3, 4)).shape
    torch.Size([3, 2])
    """

    def __init__(self) -> None:
        # With the devices of arguments, which are not saved. Plain programs may be added too.
        self.programs: dict[str, ExportTargetDef | ExportedProgram] = {}

    def save(self, path: str | Path) -> int:
        """Write an index to `path`, and beside it a .pt2 file a program and one file of tensors.

        Gives the number of tensors that were not written again. The files may move together.
        """
        index = _check_index(Path(path))
        if not self.programs:
            raise errors.ExportError("there is no program to save", hint="export_program adds one")
        programs = {name: target_of(program) for name, program in self.programs.items()}
        files = {name: f"{index.stem}.{name}.pt2" for name in programs}
        tensors = {name: _tensors(program) for name, program in programs.items()}
        with container.replace_file(index.with_name(_tensor_file(index))) as file:
            torch.save(tensors, file)  # tensors that share memory still do when they are read
        for name, program in programs.items():
            place = index.with_name(files[name])
            with _without_tensors(program), container.replace_file(place) as file:
                torch.export.save(program, file)
        text = json.dumps({"format": _FORMAT, "programs": files, "tensors": _tensor_file(index)})
        with container.replace_file(index) as file:
            file.write(text.encode())
        places = Counter(identity(t) for held in tensors.values() for t in held.values())
        return sum(count - 1 for count in places.values())

    @staticmethod
    def load(path: str | Path) -> FxPrograms:
        """Read the files that `save` wrote."""
        index = _check_index(Path(path))
        loaded = FxPrograms()
        try:
            facts = json.loads(index.read_text())
            tensors = torch.load(index.with_name(facts["tensors"]), weights_only=True, mmap=True)
            for name, file in facts["programs"].items():
                program = torch.export.load(_require_file(index.with_name(file)))
                _fill(program, tensors[name])
                loaded.programs[name] = ExportTargetDef(program)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise errors.ExportError(
                f"cannot read programs: {type(error).__name__}: {str(error).splitlines()[0]}",
                where=str(index),
                hint="the index, the .pt2 files and the file of tensors belong together",
            ) from error
        return loaded


class FxProgramsBuilder(FxPrograms):
    """Export functions of a root module, with the decorator `export_program`."""

    def __init__(self, root_module: nn.Module) -> None:
        super().__init__()
        self.root_module = root_module

    def export_program(
        self,
        f: Callable[..., Any] | None = None,
        *,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        dynamic_shapes: Any = None,
        strict: bool = False,
        name: str | None = None,
        arg_device: Devices | None = None,
    ) -> Callable[..., Any]:
        """Export `f(root_module, *args, **kwargs)` as an entry point called like the function.

        Gives the program, which procedures of a `CompiledModule` can call. One whose name begins
        with an underscore is for them alone and is no entry point.

        `dynamic_shapes` names the arguments after the module, as torch.export wants them, and
        `arg_device` their devices, by their places.
        """

        def add(function: Callable[..., Any]) -> ExportedProgram:
            entry = function.__name__ if name is None else name
            problem = None if is_private(entry) else name_problem(entry)
            if problem is not None:
                raise errors.ExportError(problem, hint="give the program another name=...")
            if entry in self.programs:
                raise errors.ExportError(
                    f"there is a program {entry!r} already", hint="give this one name=..."
                )
            program = _export(
                self.root_module, function, args or (), kwargs, dynamic_shapes, strict
            )
            self.programs[entry] = ExportTargetDef(program, argument_device_affinities=arg_device)
            return program

        return add if f is None else add(f)


def target_of(program: ExportTargetDef | ExportedProgram) -> ExportedProgram:
    """The program itself."""
    target = program.target if isinstance(program, ExportTargetDef) else program
    if not isinstance(target, ExportedProgram):
        raise errors.ExportError(
            f"a {type(target).__name__} is not a program of torch.export's",
            hint="make one with torch.export.export(model, args)",
        )
    return target


def is_private(name: str) -> bool:
    """Whether only procedures can call a program."""
    return name.startswith("_") and name.isidentifier()


class _Entry(nn.Module):
    """A function of a root module as a module that holds the root's own tensors by their names."""

    def __init__(self, root: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        # The very same dictionaries: what torch.export puts in their place, the root sees too.
        self._parameters = root._parameters
        self._buffers = root._buffers
        self._modules = root._modules
        self._non_persistent_buffers_set = root._non_persistent_buffers_set
        self.training = root.training
        self.__dict__["forward"] = _bind_root(root, function)


def _bind_root(root: nn.Module, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its first argument bound, and the names of the others."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return function(root, *args, **kwargs)

    signature = inspect.signature(function)
    names = list(signature.parameters.values())
    if not names:
        raise errors.ExportError(
            f"{function.__name__} takes no argument, expected the module as its first",
            hint=f"write def {function.__name__}(module, ...)",
        )
    forward.__dict__["__signature__"] = signature.replace(parameters=names[1:])
    return forward


def _export(
    root: nn.Module,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    dynamic_shapes: Any,
    strict: bool,
) -> ExportedProgram:
    entry = _Entry(root, function)
    return export_program(entry, args, kwargs or {}, dynamic_shapes, strict, function.__name__)


def _check_index(path: Path) -> Path:
    if path.suffix != INDEX_SUFFIX:
        raise errors.ExportError(
            f"programs are saved under a name that ends in {INDEX_SUFFIX}, not {path.name!r}",
            hint=f"call it {path.stem}{INDEX_SUFFIX}",
        )
    return path


def _require_file(path: Path) -> Path:
    # torch also logs a traceback for a missing file.
    if not path.is_file():
        raise FileNotFoundError(f"no file {path.name}")
    return path


def _tensor_file(index: Path) -> str:
    return f"{index.stem}.tensors.pt"


def _tensors(program: ExportedProgram) -> dict[str, Tensor]:
    """The parameters, buffers and constants of a program, by name."""
    constants = {k: v for k, v in program.constants.items() if isinstance(v, Tensor)}
    return {name: t.detach() for name, t in (program.state_dict | constants).items()}


@contextmanager
def _without_tensors(program: ExportedProgram) -> Iterator[None]:
    """Save a program without the values of tensors, in a `with` block."""
    state, constants = program._state_dict, program._constants
    program._state_dict = {name: _hollow(tensor) for name, tensor in state.items()}
    program._constants = {
        name: _hollow(value) if isinstance(value, Tensor) else value
        for name, value in constants.items()
    }
    try:
        yield
    finally:
        program._state_dict, program._constants = state, constants


def _hollow(tensor: Tensor) -> Tensor:
    """An empty tensor of the same type."""
    return _like(tensor, torch.empty(0, dtype=tensor.dtype))


def _like(tensor: Tensor, values: Tensor) -> Tensor:
    is_parameter = isinstance(tensor, nn.Parameter)
    return nn.Parameter(values, tensor.requires_grad) if is_parameter else values


def _fill(program: ExportedProgram, tensors: dict[str, Tensor]) -> None:
    for name, value in program.state_dict.items():
        program.state_dict[name] = _like(value, tensors[name])
    for name in program.constants.keys() & tensors.keys():
        program.constants[name] = tensors[name]
