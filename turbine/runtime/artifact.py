"""A compiled model as a callable: load it from a file, call it with tensors or arrays."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from iree.runtime import version as iree_version

from turbine import config, errors, target
from turbine.runtime import container, device, parameters
from turbine.runtime.archive import Archive, open_archive
from turbine.runtime.calling import Caller
from turbine.runtime.container import Container
from turbine.runtime.executable import Executable
from turbine.signature import Signature
from turbine.target import Target

CODE = "code"
WEIGHT_PREFIX = "weight:"


class Artifact:
    """A compiled model. Call it as the model was called; torch in, torch out, numpy likewise.

    Loading maps the file and checks everything but the weights. The first call checks those,
    and the program then derives from them what it needs.
    """

    def __init__(self, contents: Container, weights: Path | None = None) -> None:
        self._contents = contents
        self.manifest: dict[str, Any] = contents.manifest
        try:
            self.target = Target(**self.manifest["target"])
            self.signature = Signature.from_json(self.manifest["signature"])
            _check_iree(self.manifest["provenance"]["iree-base-compiler"], contents.source)
            contents.check(CODE)
            self.driver = device.driver_for(self.target, self.manifest["mflop"])
            self._weights = _Weights(contents, weights)
            self._executable = Executable(
                contents.bytes_of(CODE),
                self.driver,
                partial(_bind, self.target, self._weights),
                self.manifest["function"],
                stateful=bool(self.manifest["state"]),
            )
            self._call = Caller(self.signature, self._executable, contents.span).call
        except (KeyError, TypeError) as error:
            raise errors.ArtifactError(
                f"the manifest makes no sense: {error!r}", where=contents.source
            ) from error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(args, kwargs)

    def __repr__(self) -> str:
        name = self.manifest["name"]
        return f"<turbine artifact {name}{self.signature.text()} for {self.target.text}>"

    def check_runs_here(self) -> None:
        """Raise unless this machine has the CPU features or the device the code needs."""
        _check_host(self.target, self._contents.source)
        device.device(self.driver)

    @property
    def weight_names(self) -> list[str]:
        """The names of the weights that lie outside the code."""
        return [entry["name"] for entry in self.manifest["weights"]]

    def reset(self) -> None:
        """Put mutated buffers back to the values they were exported with."""
        self._executable.reset()

    def save(self, path: str | Path) -> None:
        """Write the artifact as one file; an old file of that name stays whole until the end.

        Weights in an archive stay there, and the new file names it.
        """
        sections = [(name, self._contents.bytes_of(name)) for name in self._contents.sections]
        manifest = {**self.manifest, **self._weights.as_seen_from(Path(path).parent)}
        container.save(Path(path), manifest, sections)

    def save_vmfb(self, path: str | Path) -> list[Path]:
        """Write a plain .vmfb (and an .irpa beside it if there are weights) for IREE's tools."""
        code = Path(path)
        written = [code]
        with container.replacing(code) as file:
            file.write(self._contents.bytes_of(CODE))
        if self.weight_names:
            written.append(code.with_suffix(".irpa"))
            parameters.save_archive(written[-1], list(self._weights.entries().items()))
        return written


class _Weights:
    """The weights of an artifact: its own, in the archive it names, or in the one given."""

    def __init__(self, contents: Container, given: Path | None) -> None:
        self.contents = contents
        self.facts: list[dict[str, Any]] = contents.manifest["weights"]
        self.given = given
        self.archive: Archive | None = None
        self.checked = False
        self.lengths = {fact["name"]: fact["length"] for fact in self.facts}
        named = contents.manifest["archive"]
        if given is not None and not self.facts:
            raise errors.ParameterError(
                "the artifact has its weights in its code", where=str(given)
            )
        if given is None and named is None:
            self.entries()  # a section that is missing is missed now
        elif self.facts:
            self.archive = open_archive(given or Path(contents.source).parent / named)
            self.archive.check_sizes(self.lengths)

    def providers(self) -> list[Any]:
        """For IREE to bind; the weights are compared with their checksums the first time."""
        if not self.checked and config.current().verify_weights:
            self._check()
        self.checked = True
        scope = self.contents.manifest["scope"]
        return [parameters.from_memory(scope, self.entries())] if self.facts else []

    def entries(self) -> dict[str, memoryview]:
        """The bytes of each weight by its name; not copied."""
        if self.archive is not None:
            return {name: self.archive.entries[name] for name in self.lengths}
        return {name: self.contents.bytes_of(WEIGHT_PREFIX + name) for name in self.lengths}

    def as_seen_from(self, folder: Path) -> dict[str, Any]:
        """What the manifest of an artifact in another folder has to say about them."""
        if self.archive is None:
            return {}
        # Weights that were given are not those the checksums were made from.
        facts = [{**fact, "crc32": None} for fact in self.facts] if self.given else self.facts
        return {"archive": os.path.relpath(self.archive.path, folder), "weights": facts}

    def _check(self) -> None:
        if self.archive is None:
            for name in self.lengths:
                self.contents.check(WEIGHT_PREFIX + name)
        elif self.given is None:
            known = {f["name"]: f["crc32"] for f in self.facts if f["crc32"] is not None}
            self.archive.check_bytes(known)


def load(path: str | Path, *, weights: str | Path | None = None) -> Artifact:
    """Load an artifact file. `weights` is an archive to use in place of its own weights.

    >>> import turbine
    >>> turbine.load("model.turbine")  # doctest: +SKIP
    """
    artifact = Artifact(container.open_file(Path(path)), None if weights is None else Path(weights))
    artifact.check_runs_here()
    return artifact


def _bind(wanted: Target, weights: _Weights) -> list[Any]:
    """What the first call needs; a function of no artifact, which would keep itself alive."""
    _check_host(wanted, weights.contents.source)
    return weights.providers()


def _check_host(wanted: Target, source: str) -> None:
    if wanted.kind != "cpu":
        return
    if wanted.architecture and wanted.architecture != target.host_architecture():
        raise errors.ArtifactTargetError(
            f"compiled for {wanted.architecture}, this machine is {target.host_architecture()}",
            where=source,
        )
    missing = target.missing_features(wanted)
    if missing:
        raise errors.ArtifactTargetError(
            f"compiled for {wanted.chip}; this CPU lacks {', '.join(missing)}",
            where=source,
            hint='compile with target="cpu:generic" for any CPU of this architecture',
        )


def _check_iree(compiler: str, source: str) -> None:
    """IREE promises to run the code of its own release, major and minor number."""
    runtime = str(iree_version.VERSION)
    if compiler.split(".")[:2] != runtime.split(".")[:2]:
        raise errors.ArtifactVersionError(
            f"compiled by IREE {compiler}, this is IREE {runtime}",
            where=source,
            hint="compile the model again, or install the version that wrote it",
        )
