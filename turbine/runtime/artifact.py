"""A compiled model as a callable: load it from a file, call it with tensors or arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from turbine import config, errors, target
from turbine.runtime import container, device, parameters
from turbine.runtime.calling import Caller
from turbine.runtime.container import Container
from turbine.runtime.executable import Executable
from turbine.signature import Signature
from turbine.target import Target

CODE = "code"
WEIGHT_PREFIX = "weight:"


class Artifact:
    """A compiled model. Call it as the model was called; torch in, torch out, numpy likewise."""

    def __init__(self, contents: Container, weights: Path | None = None) -> None:
        self._contents = contents
        self.manifest: dict[str, Any] = contents.manifest
        self.target = Target(**self.manifest["target"])
        self.signature = Signature.from_json(self.manifest["signature"])
        _check_host(self.target, contents.source)
        contents.check(CODE)
        self._weights = weights
        self._executable = Executable(
            contents.bytes_of(CODE), self.driver, self._providers, self.manifest["function"]
        )
        self._caller = Caller(self.signature, self._executable, contents.span)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._caller(args, kwargs)

    def __repr__(self) -> str:
        return f"<turbine artifact {self.manifest['name']}{self.signature.text()} for {self.target.text}>"

    @property
    def driver(self) -> str:
        """The runtime driver: small programs run on the calling thread, large on all cores."""
        if self.target.kind != "cpu":
            return self.target.drivers[0]
        small = self.manifest["mflop"] < config.current().sync_limit_mflop
        return device.SYNC if small else device.TASK

    @property
    def weight_names(self) -> list[str]:
        """The names of the weights that lie outside the code."""
        return [entry["name"] for entry in self.manifest["weights"]]

    def reset(self) -> None:
        """Put mutated buffers back to the values they were exported with."""
        self._executable.reset()

    def save(self, path: str | Path) -> None:
        """Write the artifact as one file; an old file of that name stays whole until the end."""
        with container.replacing(Path(path)) as file:
            file.write(self._contents.data)

    def save_vmfb(self, path: str | Path) -> list[Path]:
        """Write a plain .vmfb (and an .irpa beside it if there are weights) for IREE's tools."""
        code = Path(path)
        written = [code]
        with container.replacing(code) as file:
            file.write(self._contents.bytes_of(CODE))
        if self.weight_names:
            written.append(code.with_suffix(".irpa"))
            entries = [(n, self._contents.bytes_of(WEIGHT_PREFIX + n)) for n in self.weight_names]
            parameters.save_archive(written[-1], entries)
        return written

    def _providers(self) -> list[Any]:
        names = self.weight_names
        if not names:
            return []
        scope = self.manifest["scope"]
        archive = self._archive()
        if archive is not None:
            lengths = {entry["name"]: entry["length"] for entry in self.manifest["weights"]}
            return [parameters.from_archive(scope, archive, lengths)]
        if config.current().verify_weights:
            for name in names:
                self._contents.check(WEIGHT_PREFIX + name)
        views = {name: self._contents.bytes_of(WEIGHT_PREFIX + name) for name in names}
        return [parameters.from_memory(scope, views)]

    def _archive(self) -> Path | None:
        """The archive given at load, or the one the artifact names, found beside it."""
        if self._weights is not None:
            return self._weights
        named = self.manifest["archive"]
        return Path(self._contents.source).parent / named if named is not None else None


def load(path: str | Path, *, weights: str | Path | None = None) -> Artifact:
    """Load an artifact file. `weights` is an archive to use in place of its own weights.

    >>> import turbine
    >>> turbine.load("model.turbine")  # doctest: +SKIP
    """
    return Artifact(container.open_file(Path(path)), None if weights is None else Path(weights))


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
