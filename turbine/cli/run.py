"""`turbine run`: an artifact and inputs in, the program's results out."""

from __future__ import annotations

import contextlib
import json as jsons
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from turbine import dtypes, errors, pytree
from turbine.cli.arguments import arguments
from turbine.cli.options import Assignment, check_output
from turbine.progress import progress
from turbine.signature import Signature

if TYPE_CHECKING:
    from turbine.runtime.function import Function


@dataclass(frozen=True)
class Result:
    """One tensor or number among the results, with its name: "result['y'][0]"."""

    name: str
    value: Any
    is_array: bool


def run_artifact(
    artifact: Annotated[Path, "file that `turbine compile` wrote"],
    *,
    input: Annotated[tuple[str, ...], "an input: x.npy, x.npz, 8x3xf32 or 8x3xf32=2.5", "-i"] = (),
    output: Annotated[tuple[Path, ...], "save a result as .npy, or all as .npz", "-o"] = (),
    function: Annotated[str | None, "which entry point, if there are several", "-f"] = None,
    size: Annotated[tuple[Assignment, ...], "a dynamic size of generated inputs, NAME=VALUE"] = (),
    weights: Annotated[Path | None, "an archive to use in place of the artifact's weights"] = None,
    json: Annotated[bool, "print the results as JSON, in full"] = False,
) -> int:
    """Run a compiled model once and print its results.

    Inputs are those of the signature in order, without constants. Without any --input, inputs are
    generated: floats are random but the same in every run, integers are 0. Results are saved in
    order: the first --output takes the first tensor.

    example:
      turbine run lenet.turbine --input 16x1x28x28xf32=0.5 --output scores.npy
    """
    from turbine.runtime.artifact import load

    # Making a result may import the user's module; what that prints is talk.
    with progress(f"running {artifact.name}"), contextlib.redirect_stdout(sys.stderr):
        program = load(artifact, weights=weights).function(function)
        _check_outputs(output, program.signature)
        args, kwargs = arguments(program.signature, input, size)
        results = _results(program, args, kwargs)
    _save(output, [result.value for result in results if result.is_array])
    print(jsons.dumps([_plain(r) for r in results]) if json else "\n".join(map(_text, results)))
    return 0


def _check_outputs(paths: Sequence[Path], signature: Signature) -> None:
    """Find mistakes before the program runs."""
    for path in paths:
        check_output(path, (".npy", ".npz"))
    tensors = sum(output.kind == "tensor" for output in signature.outputs)
    tensors += sum(spec.mutated for spec in signature.inputs)
    files = sum(path.suffix == ".npy" for path in paths)
    if files > tensors:
        raise errors.ConfigError(
            f"too many --output files: {files=} {tensors=}",
            hint=f"the signature is {signature.text()}",
        )


def _results(program: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Result]:
    """What the call gives, and after that the inputs it wrote to."""
    signature = program.signature
    given = program(*args, **kwargs)
    names = pytree.paths(signature.out_tree, "result")
    values = pytree.flatten(signature.out_tree, given, "result")
    is_array = [output.kind == "tensor" for output in signature.outputs]
    results = [Result(*row) for row in zip(names, values, is_array, strict=True)]
    return results + _mutated_arguments(signature, args, kwargs)


def _mutated_arguments(
    signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Result]:
    leaves = signature.leaves(args, kwargs)
    pairs = zip(signature.inputs, leaves, strict=True)
    return [Result(f"{spec.name} (written)", leaf, True) for spec, leaf in pairs if spec.mutated]


def _save(paths: Sequence[Path], arrays: Sequence[Any]) -> None:
    import numpy

    single = [path for path in paths if path.suffix == ".npy"]
    for path, array in zip(single, arrays, strict=False):
        numpy.save(path, array)
    for path in paths:
        if path.suffix == ".npz":
            numpy.savez(path, *arrays)


def _text(result: Result) -> str:
    import numpy

    if not result.is_array:
        return f"{result.name}: {result.value!r}"
    sizes = ", ".join(map(str, result.value.shape))
    values = numpy.array2string(result.value, threshold=100, edgeitems=3, max_line_width=100)
    return f"{result.name}: {dtypes.of_numpy(result.value.dtype).name}[{sizes}]\n{values}"


def _plain(result: Result) -> dict[str, Any]:
    if not result.is_array:
        return {"name": result.name, "value": _number(result.value)}
    row = dtypes.of_numpy(result.value.dtype)
    return {
        "name": result.name,
        "dtype": row.name,
        "shape": list(result.value.shape),
        "values": _nest(_to_list(result.value, row.kind)),
    }


def _to_list(array: Any, kind: str) -> Any:
    """Lists of Python numbers; a complex number is the pair of its parts."""
    if kind == "complex":
        array = array.reshape(*array.shape, 1).view(array.real.dtype)
    # The types that numpy does not know itself fit in a double.
    return (array.astype("float64") if kind == "float" else array).tolist()


def _nest(values: Any) -> Any:
    return [_nest(item) for item in values] if isinstance(values, list) else _number(values)


def _number(value: Any) -> Any:
    """JSON has no infinities and no NaN: they are written as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
