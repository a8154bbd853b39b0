"""Texts of `--set NAME=VALUE` in, values of configuration knobs out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from turbine import config, errors
from turbine.cli.options import Assignment

TRUTH = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def knobs(assignments: Iterable[Assignment]) -> dict[str, Any]:
    """What `config.override` takes; it checks names and converts all but truth values."""
    return {_name(a): _value(a) for a in assignments}


def _name(assignment: Assignment) -> str:
    return assignment.name.replace("-", "_")


def _value(assignment: Assignment) -> str | bool:
    name, text = _name(assignment), assignment.value
    if name not in config.KNOBS or config.KNOBS[name].type != "bool":
        return text
    if text.lower() not in TRUTH:
        raise errors.ConfigError(f"knob {name}={text!r} is not a truth value", hint="use 1 or 0")
    return TRUTH[text.lower()]
