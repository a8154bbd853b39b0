"""Translate exceptions of torch.export to ours, with the user's line and a hint."""

from __future__ import annotations

import re
from traceback import extract_tb

from turbine import errors
from turbine.capture.argument_checks import DENSE_HINT, PADDED_HINT

# Regular expression for PyTorch's message -> hint. The first match is used.
_REMEDIES = {
    r"GuardOnDataDependent|data-dependent": "Python control flow or a size depends on the value "
    "of a tensor, which is unknown during tracing; use torch.where(condition, a, b) or torch.cond, "
    "or compute the number outside of the model and pass it as an int",
    r"missing a required argument|unexpected keyword|too many positional": "args=(...) and "
    "kwargs={...} are example arguments for the model's forward, by its parameters",
    r"Unsupported input type <class 'numpy": "convert arrays with torch.from_numpy(x)",
    r"Unsupported input type": "pass tensors, ints, floats, bools, strings, None or pytrees",
    r"which is not a known type": "return tensors, ints, floats, bools, None or pytrees of these",
    r"\.numpy\(\) is not supported|numpy": "numpy functions cannot be traced; use torch's "
    "functions instead, or convert before the call",
    r"DeviceMismatch|same device|Device Propagation": "move the model and the example arguments to "
    'one device, as in model.to("cpu")',
    r"Constraints violated": "the model fixes a size that dynamic_shapes leaves open; take that "
    "axis out of dynamic_shapes, or lift the restriction in the model",
    r"dynamic_shapes": "dynamic_shapes has one entry for each argument of forward, as in "
    '{"x": {0: torch.export.Dim("batch")}}',
    r"ScriptModule": "export the nn.Module that was scripted",
}
_OTHERWISE = (
    "the chained exception has the whole reason; torch.export's documentation lists what a model "
    "may do while it is traced"
)


# Regular expression for a message, or for the path of a PyTorch file -> kind of tensor, hint.
_NOT_DENSE = {
    r"NestedTensor|nested_tensor|torch[./]nested\b": ("nested", PADDED_HINT),
    r"Sparse|[_.]sparse_|torch/sparse\b": ("sparse", DENSE_HINT),
}


def export_error(name: str, error: Exception) -> errors.ExportError:
    """The error for a model that PyTorch could not export; `name` is the model's."""
    reason = f"{type(error).__name__}: {str(error).strip()}"
    files = "\n".join(frame.filename for frame in extract_tb(error.__traceback__))
    for pattern, (kind, advice) in _NOT_DENSE.items():
        if re.search(pattern, f"{reason}\n{files}"):
            return errors.UnsupportedOp(
                f"PyTorch could not export {name}, which computes with {kind} tensors: "
                + reason.split("\n\n")[0],
                where=errors.line_of_error(error),
                hint=advice,
            )
    hints = (hint for pattern, hint in _REMEDIES.items() if re.search(pattern, reason))
    return errors.ExportError(
        f"PyTorch could not export {name}: " + reason.split("\n\n")[0],
        where=errors.line_of_error(error),
        hint=next(hints, _OTHERWISE),
    )
