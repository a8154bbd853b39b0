"""Lower an ONNX model: a file in, a module in the torch dialect and a signature out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from turbine import dtypes, errors
from turbine.dims import Dim
from turbine.extras import import_extra
from turbine.lower.importer import DEFAULT_NAME, Lowered
from turbine.mlir import context as mlir_context
from turbine.mlir import function
from turbine.mlir.ir import Module
from turbine.pytree import LEAF, Tree
from turbine.signature import Input, Output, Range, Signature

_PIPELINE = "builtin.module(torch-onnx-to-torch-backend-pipeline)"
_LEAST_OPSET = 17  # older models are converted; IREE's importer takes no older ones
_INSTEAD = "export the model from PyTorch with turbine.aot.export, if it comes from there"
_HINT = "give a file that torch.onnx.export or another exporter wrote"


@dataclass(frozen=True)
class OnnxModule:
    """A lowered model: its module, with the weights as constants, and how it is called."""

    lowered: Lowered
    signature: Signature
    weight_count: int  # elements of all weights


def lower_onnx(path: Path, module_name: str) -> OnnxModule:
    """Lower the graph of a file as the only function."""
    onnx = _onnx()
    model = _read(onnx, path)
    text = _import(model, path)
    module = mlir_context.parse(text)
    _convert(module, path)
    with module.context:
        function.set_module_name(module, module_name)
        function.rename_only(module, DEFAULT_NAME)
    graph = model.graph
    weights = {weight.name: math.prod(weight.dims) for weight in graph.initializer}
    given = [value for value in graph.input if value.name not in weights]
    signature = _signature(onnx, given, graph.output)
    return OnnxModule(Lowered(module, ()), signature, sum(weights.values()))


def _onnx() -> ModuleType:
    for part in ("onnx.shape_inference", "onnx.version_converter"):
        import_extra(part, "onnx")
    return import_extra("onnx", "onnx")


def _read(onnx: ModuleType, path: Path) -> Any:
    """The model, in an operator set that the importer takes, with the types of its values."""
    try:
        model = onnx.load(path)
        onnx.checker.check_model(model)
        versions = [one.version for one in model.opset_import if one.domain in ("", "ai.onnx")]
        if versions and versions[0] < _LEAST_OPSET:
            model = onnx.version_converter.convert_version(model, _LEAST_OPSET)
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    # Protobuf and onnx raise errors of many types about the contents of a file.
    except Exception as error:
        raise errors.ExportError(f"cannot read {path}: {_first_line(error)}", hint=_HINT) from error


def _import(model: Any, path: Path) -> bytes:
    """The graph as MLIR, with operators of ONNX."""
    from iree.compiler.extras import onnx_importer

    try:
        info = onnx_importer.ModelInfo(model)
        module = info.create_module(context=mlir_context.new_context()).operation
        onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
    except onnx_importer.OnnxImportError as error:
        raise errors.UnsupportedOp(
            f"IREE's importer does not take this model: {_first_line(error)}",
            where=str(path),
            hint=_INSTEAD,
        ) from error
    return str(module).encode()


def _convert(module: Module, path: Path) -> None:
    """Replace the operators of ONNX by those of the torch dialect."""
    try:
        mlir_context.run_pipeline(module, _PIPELINE)
    except errors.CompileError as error:
        named = re.search(r'"onnx\.(\w+)"', error.fact)
        raise errors.UnsupportedOp(
            f"no lowering for {'an operator' if named is None else named[1]} of ONNX: {error.fact}",
            where=str(path),
            hint=_INSTEAD,
        ) from error


def _signature(onnx: ModuleType, inputs: Sequence[Any], outputs: Sequence[Any]) -> Signature:
    names = [_identifier(value.name) for value in inputs]
    symbols: dict[str, Range] = {}
    arguments = []
    for name, value in zip(names, inputs, strict=True):
        dtype, shape = _type(onnx, name, value)
        symbols |= {dim: Range(1, None) for dim in shape if isinstance(dim, str)}
        arguments.append(Input(name, "tensor", dtype, shape))
    results = [_identifier(value.name) for value in outputs]
    types = [_type(onnx, name, value) for name, value in zip(results, outputs, strict=True)]
    leaves = (LEAF,) * len(types)
    return Signature(
        inputs=tuple(arguments),
        outputs=tuple(Output("tensor", dtype, shape) for dtype, shape in types),
        in_tree=Tree("tuple", (Tree("tuple", (LEAF,) * len(names)), Tree("dict"))),
        out_tree=LEAF if len(types) == 1 else Tree("dict", leaves, tuple(results)),
        symbols=symbols,
        parameters=tuple(names),
    )


def _type(onnx: ModuleType, name: str, value: Any) -> tuple[str, tuple[Dim, ...]]:
    tensor = value.type.tensor_type
    if value.type.WhichOneof("value") != "tensor_type" or not tensor.HasField("shape"):
        raise errors.ExportError(
            f"{name} of the ONNX model is not a tensor of known rank",
            hint="export the model with tensors for its arguments and results",
        )
    dtype = dtypes.of_numpy(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
    return dtype, tuple(_dims(name, tensor.shape.dim))


def _dims(name: str, dims: Sequence[Any]) -> Iterator[Dim]:
    """The sizes; one without a usable name is called after its tensor and axis."""
    for axis, dim in enumerate(dims):
        if dim.HasField("dim_value"):
            yield int(dim.dim_value)
        elif dim.dim_param.isidentifier():
            yield str(dim.dim_param)
        else:
            yield f"{name}_{axis}"


def _identifier(name: str) -> str:
    """The name as one of Python's: "input.1" is input_1."""
    found = re.sub(r"\W", "_", name)
    return found if found.isidentifier() else f"_{found}"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
