"""Find the weights of an artifact, and bind them for IREE."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from turbine import config, errors
from turbine.runtime import parameters
from turbine.runtime.archive import Archive, open_archive
from turbine.runtime.container import Container
from turbine.runtime.entries import Declared, Entry
from turbine.runtime.state_dict import StateDict

WEIGHT_PREFIX = "weight:"
# An archive for all scopes, archives by scope, or values by name.
Given = Path | Mapping[str, Path] | StateDict | None


class Weights:
    """The weights of an artifact, in its file, an archive that it refers to, or a given archive."""

    def __init__(self, contents: Container, given: Given = None) -> None:
        self.contents = contents
        self.declared = [Declared.from_json(row) for row in contents.manifest["weights"]]
        self.scopes = list(dict.fromkeys(weight.scope for weight in self.declared))
        self._refuse_inline(given)
        self.given: dict[str, Path] = {}
        if isinstance(given, StateDict):
            self._replaced = set(self.scopes)
            self.archives = {s: given.archive(self._of(s)) for s in self.scopes}
        else:
            self.given = self._by_scope(given)
            self._replaced = set(self.given)
            self.archives = self._open({**named_archives(contents), **self.given})
        self._written = {row["name"] for row in contents.manifest["state"]}
        self._bytes: dict[str, memoryview] = {}
        self._checked = False
        for weight in self.declared:
            if not self._is_archived(weight):
                contents.bytes_of(WEIGHT_PREFIX + weight.name)  # raises if it is missing

    def _refuse_inline(self, given: Given) -> None:
        if given and not self.declared:
            raise errors.ParameterError(
                "the artifact has its weights in its code",
                where=str(given) if isinstance(given, Path) else None,
                hint='export with weights="external" to give other weights when it is loaded',
            )

    def _is_archived(self, weight: Declared) -> bool:
        archive = self.archives.get(weight.scope)
        return archive is not None and weight.key in archive.entries

    def _of(self, scope: str) -> list[Declared]:
        return [weight for weight in self.declared if weight.scope == scope]

    def _by_scope(self, given: Path | Mapping[str, Path] | None) -> dict[str, Path]:
        if given is None:
            return {}
        if not isinstance(given, Mapping):
            return dict.fromkeys(self.scopes, given)
        unknown = [scope for scope in given if scope not in self.scopes]
        if unknown:
            raise errors.ParameterError(errors.unknown("scope", unknown[0], self.scopes))
        return dict(given)

    def _open(self, paths: Mapping[str, Path]) -> dict[str, Archive]:
        for scope, path in paths.items():
            if scope not in self._replaced and not path.exists():
                raise errors.ParameterError(
                    f"no archive at {path}",
                    where=self.contents.source,
                    hint="put it back there, or name another: turbine.load(path, weights=...)",
                )
        archives = {path: open_archive(path) for path in set(paths.values())}
        for path, archive in archives.items():
            wanted = [w for w in self.declared if paths.get(w.scope) == path]
            check_keys(wanted, str(path))
            archive.check(wanted)
        return {scope: archives[path] for scope, path in paths.items()}

    def providers(self) -> list[Any]:
        """The providers for IREE; the first call compares the weights with their checksums."""
        if not self._checked and config.current().verify_weights:
            self._check()
        self._checked = True
        return [parameters.from_memory(scope, self._of_scope(scope)) for scope in self.scopes]

    def entries(self, scope: str) -> list[Entry]:
        """The weights of a scope; not copied, unless converted."""
        return [
            Entry(weight.key, self._bytes_of(weight), weight.dtype, weight.shape)
            for weight in self._of(scope)
        ]

    def sections_in_memory(self) -> dict[str, memoryview]:
        """The sections of weights that are in no file."""
        scopes = {scope for scope, archive in self.archives.items() if archive.path is None}
        return {
            WEIGHT_PREFIX + weight.name: self._bytes_of(weight)
            for weight in self.declared
            if weight.scope in scopes
        }

    def as_seen_from(self, folder: Path) -> dict[str, Any]:
        """The rows for the manifest of an artifact that is saved in a folder."""
        paths = {
            scope: os.path.relpath(archive.path, folder)
            for scope, archive in self.archives.items()
            if archive.path is not None
        }
        # The checksums do not belong to given weights.
        known = [replace(w, crc32=None) if w.scope in self._replaced else w for w in self.declared]
        return {"archives": paths, "weights": [asdict(weight) for weight in known]}

    def _of_scope(self, scope: str) -> dict[str, memoryview]:
        return {weight.key: self._bind_bytes(weight) for weight in self._of(scope)}

    def _bind_bytes(self, weight: Declared) -> memoryview:
        # A program may write to its state in place, and a reset needs the old values.
        data = self._bytes_of(weight)
        return memoryview(bytearray(data)) if weight.name in self._written else data

    def _bytes_of(self, weight: Declared) -> memoryview:
        if weight.name not in self._bytes:
            self._bytes[weight.name] = (
                self.archives[weight.scope].bytes_of(weight)
                if self._is_archived(weight)
                else self.contents.bytes_of(WEIGHT_PREFIX + weight.name)
            )
        return self._bytes[weight.name]

    def _check(self) -> None:
        for weight in self.declared:
            if not self._is_archived(weight):
                self.contents.check(WEIGHT_PREFIX + weight.name)
        for scope in self.archives.keys() - self._replaced:
            self.archives[scope].check_bytes(filter(self._is_archived, self._of(scope)))


def named_archives(contents: Container) -> dict[str, Path]:
    """The archives that an artifact refers to, by scope."""
    folder = Path(contents.source).parent
    return {scope: folder / path for scope, path in contents.manifest["archives"].items()}


def check_keys(weights: Iterable[Declared], where: str) -> None:
    """Raise if one archive would need several weights under one name."""
    first: dict[str, Declared] = {}
    for weight in weights:
        other = first.setdefault(weight.key, weight)
        if other is not weight:
            raise errors.ParameterError(
                f"the scopes {other.scope!r} and {weight.scope!r} both have a {weight.key!r}, "
                "which one archive cannot hold",
                where=where,
                hint="use an archive for each scope, or names with a prefix",
            )
