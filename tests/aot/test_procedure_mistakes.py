"""Errors in procedural modules name the line."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from turbine import aot, errors
from turbine.aot import IREE, AbstractIndex, AbstractTensor, CompiledModule, export_global, jittable

BATCH = torch.export.Dim("batch", min=3, max=6)


def refused(*, match: str, **members: Any) -> errors.ProcedureError:
    """The error that a class of these members ends in."""
    with pytest.raises(errors.ProcedureError, match=match) as caught:
        CompiledModule.create_from_dict("Wrong", members)()
    return caught.value


def procedure(body: Any) -> Any:
    def run(self: Any, x: Any = AbstractTensor(2), n: Any = AbstractIndex) -> Any:
        return body(self, x, n)

    return run


MISTAKES: dict[str, tuple[Any, str]] = {
    "an undefined global": (
        lambda self, x, n: setattr(self, "stete", x),
        "unknown global 'stete'; valid: state, fixed, number",
    ),
    "an undefined global that is read": (
        lambda self, x, n: self.stete,
        "unknown global or procedure 'stete'; valid: state, other",
    ),
    "an immutable global": (
        lambda self, x, n: setattr(self, "fixed", x),
        "the global 'fixed' is not mutable",
    ),
    "another shape": (
        lambda self, x, n: setattr(self, "state", IREE.tensor_splat(3, value=1)),
        r"the global 'state' is a float32\[3\], expected a float32\[2\]",
    ),
    "another dtype": (
        lambda self, x, n: setattr(self, "state", torch.ones(2, dtype=torch.int64)),
        r"the global 'state' is a int64\[2\], expected a float32\[2\]",
    ),
    "no tensor": (
        lambda self, x, n: setattr(self, "state", 3),
        r"the global 'state' is a int, expected a float32\[2\]",
    ),
    "another kind of number": (
        lambda self, x, n: setattr(self, "number", n),
        "the global 'number' is a index, expected a float64",
    ),
    "no value": (lambda self, x, n: object(), "'run' returns a object, an unsupported type"),
    "a branch": (lambda self, x, n: 1 if n > 2 else 2, "a bool known only at run time cannot dec"),
    "a range": (lambda self, x, n: list(range(n)), "a index known only at run time cannot become"),
    "an exception": (
        lambda self, x, n: vars(torch)["key"],
        "'run' failed: KeyError: 'key'",
    ),
    "itself": (lambda self, x, n: self.run(x, n), "infinite recursion of procedures: run -> run"),
    "arguments": (lambda self, x, n: self.other(n), r"argument 'x' is a IrScalar, expected a floa"),
    "too many": (lambda self, x, n: self.other(x, n), "a call of 'other': wrong arguments"),
    "a part": (lambda self, x, n: IREE.tensor_slice(x, (1, 2)), "out of range along axis=0"),
    "a count": (lambda self, x, n: IREE.tensor_reshape(x, 3), "has 2 elements, the new shape has"),
    "an axis": (lambda self, x, n: IREE.tensor_dim(x, 1), "axis out of range: axis=1 rank=1"),
    "an unknown parameter": (
        lambda self, x, n: jittable(lambda y: y + 1, dynamic_shapes={"x": {0: None}})(x),
        "unknown parameter in dynamic_shapes 'x'; valid: y",
    ),
    "a size that is known": (
        lambda self, x, n: jittable(lambda y: y + 1, dynamic_shapes={"y": {0: BATCH}})(x),
        r"dynamic_shapes\['y'\] has axis 0 from 3 to 6, and in this call it has size 2",
    ),
    "no Dim": (
        lambda self, x, n: jittable(lambda y: y + 1, dynamic_shapes={"y": {1: 4}})(x),
        r"dynamic_shapes\['y'\] says 4 of axis 1: rank=1",
    ),
    "an unknown pass": (
        lambda self, x, n: jittable(lambda y: y + 1, passes=["fold"])(x),
        "unknown pass of a jittable 'fold'; valid: functorch_functionalize",
    ),
    "pytorch": (lambda self, x, n: jittable(lambda x: x @ x.T @ torch.ones(3))(x), "jittable"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_errors_name_the_line(name: str) -> None:
    body, match = MISTAKES[name]
    error = refused(
        match=match,
        state=export_global(torch.zeros(2), mutable=True),
        fixed=export_global(torch.zeros(2)),
        number=export_global(1.0, mutable=True),
        other=lambda self, x=AbstractTensor(2): x,
        run=procedure(body),
    )
    assert "test_procedure_mistakes.py:" in (error.where or "")


def test_name_collisions_name_both_members() -> None:
    one, two = export_global(torch.ones(2), name="x"), export_global(1, name="x")
    refused(match="wrong.a and the global wrong.b are both named 'x'", a=one, b=two)
    clash = export_global(torch.ones(2), name="run")
    refused(match="global wrong.a and the procedure Wrong.run", a=clash, run=procedure(None))


def test_names_of_artifact_attributes_are_rejected() -> None:
    refused(
        match="in wrong, 'reset' would be hidden by `reset` of the artifact", reset=procedure(None)
    )


def test_a_parameter_without_a_type_is_named() -> None:
    refused(match="of the parameter 'x' of procedure 'run'", run=lambda self, x: x)


def test_conflicting_attributes_of_globals_are_rejected() -> None:
    with pytest.raises(errors.ProcedureError, match="both external and uninitialized"):
        export_global(AbstractTensor(2), mutable=True, external=True, uninitialized=True)
    with pytest.raises(errors.ProcedureError, match="has to be mutable"):
        export_global(AbstractTensor(2), uninitialized=True)
    refused(match="the global 'x' cannot be a str", x=export_global("text"))
    refused(match="'x' has sizes that are not known", x=export_global(AbstractTensor(None)))
    named = export_global(AbstractTensor("n"), mutable=True)
    refused(match="'x' has sizes that are not known", x=named)


def test_invalid_options_are_rejected() -> None:
    with pytest.raises(errors.ProcedureError, match=r"Wrong is given options=3"):
        CompiledModule.create_from_dict("Wrong", {}, options=3)  # type: ignore[arg-type]


def test_values_are_rejected_outside_of_their_procedure() -> None:
    instance = CompiledModule.create_from_dict("Small", {"x": export_global(1)})()
    with pytest.raises(errors.ProcedureError, match="the global 'x' was used outside"):
        _ = instance.x
    with pytest.raises(errors.ExportError, match="small has no entry points"):
        aot.export(instance).compile()
