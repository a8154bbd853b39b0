"""Compiler messages are parsed to a reason and a location."""

from __future__ import annotations

import pytest

from turbine import errors, target
from turbine.compiler import diagnostics, pipeline, session
from turbine.compiler.diagnostics import ERROR, Diagnostic, parse

# Recorded from IREE 3.13; only the long types are shortened.
ILLEGAL = (
    "{place}: failed to legalize operation 'torch.operator' that was explicitly marked illegal: "
    '%0 = "torch.operator"(%arg0) <{{name = "torch.aten.frobnicate"}}> : (f32) -> f32\n\n'
)
SEE = '{place}: see current operation: %0 = "torch.operator"(%arg0) : (f32) -> f32'
TORCH = "/v/lib/python3.11/site-packages/torch/nn/functional.py:12:5"
RECORDED = {
    "one place, told twice": (
        ILLEGAL.format(place="/home/u/model.py:12:5") + SEE.format(place="/home/u/model.py:12:5"),
        ("/home/u/model.py:12",),
        "/home/u/model.py:12",
    ),
    "a call stack, innermost first": (
        ILLEGAL.format(place=TORCH)
        + "/home/u/my model.py:14:5: called from\n\n/home/u/main.py:3:1: called from\n\n"
        + SEE.format(place=TORCH),
        (
            "/v/lib/python3.11/site-packages/torch/nn/functional.py:12",
            "/home/u/my model.py:14",
            "/home/u/main.py:3",
        ),
        "/home/u/my model.py:14",
    ),
    "only torch's own code": (
        ILLEGAL.format(place=TORCH),
        ("/v/lib/python3.11/site-packages/torch/nn/functional.py:12",),
        "/v/lib/python3.11/site-packages/torch/nn/functional.py:12",
    ),
    "a colon in a name": (
        ILLEGAL.format(place="C:\\work\\model.py:3:4"),
        ("C:\\work\\model.py:3",),
        "C:\\work\\model.py:3",
    ),
    "a cell of a notebook": (
        ILLEGAL.format(place="<ipython-input-1-5d>:3:4"),
        ("<ipython-input-1-5d>:3",),
        "<ipython-input-1-5d>:3",
    ),
    "no place": (ILLEGAL.format(place="loc(unknown)"), (), None),
    "a name for a place": (ILLEGAL.format(place='loc("add")'), (), None),
}


@pytest.mark.parametrize("case", RECORDED)
def test_locations_are_parsed_from_recorded_messages(case: str) -> None:
    text, places, where = RECORDED[case]
    diagnostic = parse(ERROR, text)
    assert (diagnostic.places, diagnostic.where) == (places, where)
    assert diagnostic.message.startswith("failed to legalize operation 'torch.operator' that was")
    assert diagnostic.unsupported_op == "torch.aten.frobnicate"


MESSAGES = [
    ("source.mlir:1:1: custom op 'x' is unknown", "custom op 'x' is unknown", None),
    ("loc(unknown): Unknown CUDA target 'bogus'", "Unknown CUDA target 'bogus'", None),
    (
        "m.py:2:3: 'func.func' op exceeded stack allocation limit of 32768 bytes for function. "
        "Got 65536 bytes",
        "'func.func' op exceeded stack allocation limit of 32768 bytes for function. "
        "Got 65536 bytes",
        None,
    ),
    (
        "m.py:2:3: failed to legalize operation 'torch.aten.cummax' that was explicitly marked "
        "illegal: %1:2 = ...",
        "failed to legalize operation 'torch.aten.cummax' that was explicitly marked illegal: "
        "%1:2 = ...",
        "torch.aten.cummax",
    ),
    (
        "m.py:2:3: error: failed to legalize operation 'arith.extf'",
        "failed to legalize operation 'arith.extf'",
        "arith.extf",
    ),
    ("\n\nm.py:2:3: late", "late", None),
    ("", "", None),
    ("text without a place", "text without a place", None),
]


@pytest.mark.parametrize(("text", "message", "op"), MESSAGES)
def test_message_is_the_first_sentence(text: str, message: str, op: str | None) -> None:
    diagnostic = parse(ERROR, text)
    assert (diagnostic.message, diagnostic.unsupported_op) == (message, op)


def test_warnings_and_remarks_are_not_the_reason() -> None:
    said = [Diagnostic(1, "warning", ()), Diagnostic(3, "remark", ()), Diagnostic(2, "error", ())]
    found = diagnostics.first_error(said)
    assert found is not None
    assert found.message == "error"
    assert diagnostics.first_error(said[:2]) is None


FLAGS = (*target.parse("cpu:generic").flags, "--iree-input-type=auto")
TWO_UNKNOWN = b"""
func.func @f(%x: !torch.vtensor<[1],f32>) -> !torch.vtensor<[1],f32> {
  %0 = torch.operator "torch.aten.frobnicate"(%x)
    : (!torch.vtensor<[1],f32>) -> !torch.vtensor<[1],f32> loc("/home/u/model.py":12:5)
  return %0 : !torch.vtensor<[1],f32>
}
func.func @g(%x: !torch.vtensor<[1],f32>) -> !torch.vtensor<[1],f32> {
  %0 = torch.operator "torch.aten.other"(%x)
    : (!torch.vtensor<[1],f32>) -> !torch.vtensor<[1],f32> loc("/home/u/model.py":14:5)
  return %0 : !torch.vtensor<[1],f32>
}
"""
WRONG_TYPE = b"func.func @f(%x: tensor<1xf32>) -> tensor<1xf32> { return %x : tensor<2xf32> }"
# Each fails at another call into the compiler.
FAILING = {
    "flags": (b"func.func @f() { return }", (*FLAGS, "--bogus"), "vm", "option not found: bogus"),
    "parse": (b"not MLIR", FLAGS, "vm", "custom op 'not' is unknown"),
    "parse bytecode": (b"ML\xefR and no more", FLAGS, "vm", "bytecode"),
    "verify": (WRONG_TYPE, FLAGS, "vm", "expects different type than prior uses"),
    "phase": (b"func.func @f() { return }", FLAGS, "bogus", "unrecognized compile-to phase"),
    "execute": (TWO_UNKNOWN, FLAGS, "vm", "failed to legalize operation 'torch.operator'"),
    "output": (b"", FLAGS, "vm", "outer module does not contain a vm.module op"),
}


@pytest.mark.parametrize("case", FAILING)
def test_every_failure_has_a_reason(case: str) -> None:
    source, flags, until, reason = FAILING[case]
    outcome = session.run(session.Request(source, flags, until))
    assert outcome.data is None
    first = diagnostics.first_error(outcome.diagnostics)
    assert first is not None
    assert reason in first.message


def test_the_exception_lists_ops_line_and_ir() -> None:
    with pytest.raises(errors.UnsupportedOpInIR) as caught:
        pipeline.compile_ir(TWO_UNKNOWN, target.parse("cpu:generic"), strategy="plain-O0")
    error = caught.value
    assert "torch.aten.frobnicate" in error.fact.partition(":")[0]
    assert "torch.aten.other" in error.fact.partition(":")[0]
    assert error.where in ("/home/u/model.py:12", "/home/u/model.py:14")
    assert "tried: plain-O0; the IR is in " in str(error.hint)


def test_a_valid_program_has_no_diagnostics() -> None:
    outcome = session.run(session.Request(b"func.func @f() { return }", FLAGS))
    assert outcome.data is not None
    assert outcome.diagnostics == ()
    assert outcome.seconds > 0
