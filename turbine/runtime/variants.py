"""Code for several CPUs in one artifact: a manifest and this machine in, the code to run out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from turbine import errors, target
from turbine.target import Target

CODE = "code"  # the section of the first variant; those of others have a number


@dataclass(frozen=True)
class Variant:
    """The program compiled for one target. The manifest has the facts of the first at its top."""

    target: Target
    strategy: str
    dispatches: list[dict[str, Any]]
    code: str = CODE  # its section

    @staticmethod
    def from_json(row: dict[str, Any]) -> Variant:
        """The variant that a row, or the top of a manifest, describes."""
        return Variant(
            Target(**row["target"]),
            row["strategy"],
            row.get("dispatches", []),
            row.get("code", CODE),
        )

    @property
    def obstacle(self) -> str | None:
        """Why this machine's CPU cannot run it."""
        if self.target.kind != "cpu":
            return None
        here = target.host_architecture()
        if self.target.architecture and self.target.architecture != here:
            return f"compiled for {self.target.architecture}, this machine is {here}"
        missing = target.missing_features(self.target)
        if missing:
            return f"compiled for {self.target.chip}; this CPU lacks {', '.join(missing)}"
        return None


def code_section(index: int) -> str:
    """The name of the section with the code of a variant."""
    return CODE if index == 0 else f"{CODE}:{index}"


def to_json(variants: list[Variant]) -> dict[str, Any]:
    """The entries of a manifest for its variants."""
    first, *others = map(asdict, variants)
    return {**first, "variants": others}


def from_json(manifest: dict[str, Any]) -> list[Variant]:
    """The variants that a manifest describes; older ones have one."""
    return [Variant.from_json(row) for row in (manifest, *manifest.get("variants", ()))]


def choose(manifest: dict[str, Any]) -> Variant:
    """The variant that uses the most features of this CPU; the first if it can run none."""
    variants = from_json(manifest)
    fitting = [variant for variant in variants if variant.obstacle is None]
    return max(fitting, key=lambda variant: len(variant.target.enabled), default=variants[0])


def check_host(manifest: dict[str, Any], source: str) -> None:
    """Raise unless this machine's CPU can run one of the variants."""
    obstacles = [variant.obstacle for variant in from_json(manifest)]
    known = [obstacle for obstacle in obstacles if obstacle is not None]
    if len(known) < len(obstacles):
        return
    raise errors.ArtifactTargetError(
        "; ".join(dict.fromkeys(known)),
        where=source,
        hint="compile the model on a machine of this kind"
        if all("this machine is" in obstacle for obstacle in known)
        else 'compile with target="cpu:generic" for any CPU of this architecture, or with a list '
        "of targets that has it",
    )
