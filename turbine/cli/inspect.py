"""`turbine inspect`: an artifact for any machine in, its manifest out."""

from __future__ import annotations

import json as jsons
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from turbine import dims, errors
from turbine.progress import progress
from turbine.signature import Range, Signature
from turbine.tables import bytes_text, fit, table
from turbine.target import Target

if TYPE_CHECKING:
    from turbine.runtime.container import Container


def inspect_artifact(
    artifact: Annotated[Path, "file that `turbine compile` wrote"],
    *,
    verify: Annotated[bool, "check all checksums; the exit code is 1 if one is wrong"] = False,
    all: Annotated[bool, "print every CPU feature and section, and long lines in full"] = False,
    json: Annotated[bool, "print everything as JSON"] = False,
) -> int:
    """Show the signature, target, weights and origin of an artifact without loading it.

    example:
      turbine inspect lenet.turbine --verify
    """
    from turbine.runtime import container

    contents = container.open_file(artifact)
    damage = {}
    if verify:
        with progress(f"verifying {artifact.name}"):
            damage = _damage(contents)
    if json:
        print(jsons.dumps(_everything(contents, damage if verify else None), indent=2))
    else:
        print(_text(contents, all))
        if verify:
            print(f"\n{_verdict(contents, damage)}")
    return 1 if damage else 0


def _damage(contents: Container) -> dict[str, str]:
    """Damage by section, or by archive of weights."""
    found = {}
    for name in contents.sections:
        try:
            contents.check(name)
        except errors.ArtifactError as error:
            found[name] = error.fact
    for archive in _archives(contents):
        fact = _archive_damage(contents, archive)
        if fact is not None:
            found[str(archive)] = fact
    return found


def _archive_damage(contents: Container, archive: Path) -> str | None:
    from turbine.runtime.archive import open_archive
    from turbine.runtime.entries import Declared
    from turbine.runtime.weights import named_archives

    paths = named_archives(contents)
    declared = [Declared.from_json(row) for row in contents.manifest["weights"]]
    try:
        open_archive(archive).check(w for w in declared if paths.get(w.scope) == archive)
    except errors.ParameterError as error:
        return error.fact
    return None


def _verdict(contents: Container, damage: dict[str, str]) -> str:
    if damage:
        return "\n".join(f"FAIL {fact}" for fact in damage.values())
    # Archives carry no checksums.
    archives = ", ".join(map(str, _archives(contents)))
    types = f"; weights in {archives} have the right types" if archives else ""
    return f"ok   all checksums match{types}"


def _everything(contents: Container, damage: dict[str, str] | None) -> dict[str, Any]:
    sections = [{"name": s.name, "bytes": s.length} for s in contents.sections.values()]
    facts = {**contents.manifest, "driver": _driver(contents.manifest), "sections": sections}
    return facts if damage is None else {**facts, "damage": damage}


def _text(contents: Container, in_full: bool) -> str:
    manifest = contents.manifest
    weights = manifest["weights"]
    total = sum(entry["length"] for entry in weights)
    facts = {
        "name": manifest["name"],
        **_functions(manifest),
        "state": _state(manifest),
        **_targets(manifest, in_full),
        "driver": _driver(manifest),
        "work": f"{_load(manifest):.4g} Mflop on one core",
        "strategy": manifest["strategy"],
        "weights": f"{len(weights)}, {bytes_text(total)}" if weights else "in the code",
        "archive": ", ".join(map(str, _archives(contents))),
        **_origin(manifest["provenance"], in_full),
    }
    limit = sys.maxsize if in_full else _LONGEST
    rows = [(key, fit(str(value), limit)) for key, value in facts.items() if value]
    return f"{table(rows)}\n\n{_sections(contents, in_full)}"


_LONGEST = 400  # characters of a value
_MOST_SECTIONS = 5
_PLACES = ("model", "commit", "source")  # of an origin; the others are versions


def _origin(provenance: dict[str, Any], in_full: bool) -> dict[str, str]:
    """Where the model came from, and the versions that compiled it, in one row unless in full."""
    known = {key: value for key, value in provenance.items() if value}
    if in_full:
        return {f"from {key}": value for key, value in known.items()}
    places = {f"from {key}": known[key] for key in _PLACES if key in known}
    rest = [f"{key} {value}" for key, value in known.items() if key not in _PLACES]
    return {**places, "versions": ", ".join(rest)}


def _targets(manifest: dict[str, Any], in_full: bool) -> dict[str, str]:
    """The target of the code, or of each of several variants."""
    from turbine.runtime import variants

    facts: dict[str, str] = {}
    for number, variant in enumerate(variants.from_json(manifest), 1):
        target, place = variant.target, f" {number}" if manifest.get("variants") else ""
        facts[f"target{place}"] = f"{target.text} {target.architecture}".strip()
        count = f"{len(target.enabled)}, listed by --all" if target.enabled else ""
        facts[f"features{place}"] = target.features if in_full else count
    return facts


def _functions(manifest: dict[str, Any]) -> dict[str, str]:
    facts: dict[str, str] = {}
    for name, data in manifest["functions"].items():
        signature = Signature.from_json(data)
        facts |= {f"function {name}": signature.text(), f"sizes of {name}": _sizes(signature)}
    return facts


def _state(manifest: dict[str, Any]) -> str:
    from turbine.runtime.state import Kept

    kept = [Kept.from_json(row) for row in manifest["state"]]
    return ", ".join(f"{value.name}: {value.text()}" for value in kept)


def _sections(contents: Container, in_full: bool) -> str:
    """The code, and the largest of the other sections."""
    from turbine.runtime.variants import CODE

    sections = list(contents.sections.values())
    largest = sorted(sections, key=lambda s: (not s.name.startswith(CODE), -s.length))
    kept = sections if in_full else largest[:_MOST_SECTIONS]
    rows = [("section", "bytes"), *((s.name, str(s.length)) for s in kept)]
    rest = [section for section in sections if section not in kept]
    if rest:
        rows.append((f"{len(rest)} more, listed by --all", str(sum(s.length for s in rest))))
    return table(rows, right={1})


def _sizes(signature: Signature) -> str:
    """The ranges of the inputs' symbols."""
    shapes = [dim for spec in signature.inputs for dim in spec.shape]
    shapes += [spec.value for spec in signature.inputs if spec.kind == "int"]
    used = dict.fromkeys(name for dim in shapes for name in dims.names(dim))
    ranges = {name: signature.symbols.get(name, Range(0, None)) for name in used}
    return ", ".join(f"{name} {_range(limits)}" for name, limits in ranges.items())


def _range(limits: Range) -> str:
    if limits.maximum is None:
        return f"at least {limits.minimum}"
    return f"{limits.minimum} to {limits.maximum}"


def _driver(manifest: dict[str, Any]) -> str:
    """The driver that `Artifact.driver` would choose, also for an artifact of another machine."""
    from turbine.runtime import device

    return device.driver_for(Target(**manifest["target"]), device.load_of(manifest))


def _load(manifest: dict[str, Any]) -> float:
    from turbine.runtime import device

    return device.load_of(manifest)


def _archives(contents: Container) -> list[Path]:
    from turbine.runtime.weights import named_archives

    return list(dict.fromkeys(named_archives(contents).values()))
