"""A compiled model as a callable: load it from a file, call it with tensors or arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from iree.runtime import version as iree_version

from turbine import config, errors, target
from turbine.runtime import checkpoint, container, device, parameters
from turbine.runtime.container import Container
from turbine.runtime.executable import Executable
from turbine.runtime.function import Function, alternate
from turbine.runtime.state import Kept, State
from turbine.runtime.weights import Given, Weights
from turbine.signature import Signature, state_functions
from turbine.target import Target

CODE = "code"


class Artifact:
    """A compiled model, called as the model is, with torch tensors or numpy arrays.

    Loading maps the file and checks everything but the weights. The first call checks the weights
    and precomputes values that depend on them alone. Several entry points are called by name,
    `artifact.decode(x)`; `artifact.state` has the values that the program keeps between calls.
    """

    def __init__(self, contents: Container, weights: Given = None) -> None:
        self._contents = contents
        self.manifest: dict[str, Any] = contents.manifest
        try:
            self.target = Target(**self.manifest["target"])
            _check_devices(self.target.devices, contents.source)
            _check_iree(self.manifest["provenance"]["iree-base-compiler"], contents.source)
            contents.check(CODE)
            self.driver = device.driver_for(self.target, device.load_of(self.manifest))
            self._weights = Weights(contents, weights)
            self._executable = Executable(
                contents.bytes_of(CODE),
                self.driver,
                partial(_bind, self.target, self._weights),
                device_count=self.target.devices,
                needs_cores=device.is_long(self.driver, device.load_of(self.manifest)),
                state=[state_functions(index) for index, _ in enumerate(self.manifest["state"])],
            )
            self.functions = {
                name: Function(self._executable, name, Signature.from_json(data), contents.span)
                for name, data in self.manifest["functions"].items()
            }
            kept = [Kept.from_json(row) for row in self.manifest["state"]]
            self.state = State(self._executable, kept, contents.span)
            training = self.manifest.get("training", {})
            self._shared: dict[str, list[str]] = training.get("shared", {})
            batches = training.get("accumulate", 1)
            if batches > 1:
                update, add = (self.functions[name] for name in ("train_step", "accumulate"))
                alternate(update, add, self.state, batches)
        except (KeyError, TypeError, AttributeError) as error:
            raise errors.ArtifactError(
                f"the manifest is invalid: {error!r}", where=contents.source, hint=container.AGAIN
            ) from error

        self._call = self.function().call if len(self.functions) == 1 else self._refuse

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(args, kwargs)

    def __getattr__(self, name: str) -> Function:
        """An entry point by its name: `artifact.decode(x)`."""
        functions: dict[str, Function] = self.__dict__.get("functions", {})
        if name not in functions:
            raise AttributeError(errors.unknown("entry point", name, functions), obj=self)
        return functions[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.functions]

    def __repr__(self) -> str:
        texts = [f"{name}{f.signature.text()}" for name, f in self.functions.items()]
        if len(texts) == 1:
            texts = [self.manifest["name"] + self.signature.text()]
        return f"<turbine artifact {', '.join(texts)} for {self.target.text}>"

    @property
    def signature(self) -> Signature:
        """The arguments and results of the only entry point."""
        return self.function().signature

    def function(self, name: str | None = None) -> Function:
        """An entry point by its name, or the only one."""
        if name is not None:
            if name not in self.functions:
                raise errors.ArgumentError(errors.unknown("entry point", name, self.functions))
            return self.functions[name]
        if len(self.functions) != 1:
            raise errors.ArgumentError(
                f"the artifact has {len(self.functions)} entry points",
                hint=f"use one by its name: {', '.join(self.functions)}",
            )
        (only,) = self.functions.values()
        return only

    def _refuse(self, args: Any, kwargs: Any) -> Any:
        return self.function()

    def check_runs_here(self) -> None:
        """Raise unless this machine has the CPU features and devices that the code needs."""
        _check_host(self.target, self._contents.source)
        self._executable.find_devices()

    @property
    def weight_names(self) -> list[str]:
        """The names of the weights that are not part of the code."""
        return [entry["name"] for entry in self.manifest["weights"]]

    def reset(self) -> None:
        """Reset state to the values it was exported with."""
        self._executable.reset()

    def save_checkpoint(self, path: str | Path) -> None:
        """Write the state to a .safetensors file, which replaces an old one atomically.

        Tensors of a model have the names that PyTorch has for them. A training step's optimizer
        has `optimizer.<parameter>.<name>` for each of its tensors.
        """
        checkpoint.save(Path(path), self.state, self._shared)

    def load_checkpoint(self, path: str | Path) -> None:
        """Set the state to that of a file; the state stays as it is if the file does not fit."""
        checkpoint.load(Path(path), self.state, self._shared, self.weight_names)

    def save(self, path: str | Path) -> None:
        """Write the artifact to one file, which replaces an old one atomically.

        Weights in an archive stay there, and the new file refers to it.
        """
        sections = [(name, self._contents.bytes_of(name)) for name in self._contents.sections]
        manifest = {**self.manifest, **self._weights.as_seen_from(Path(path).parent)}
        container.save(Path(path), manifest, sections)

    def save_vmfb(self, path: str | Path) -> list[Path]:
        """Write a .vmfb for IREE's tools, and an .irpa beside it if there are weights.

        Each of several scopes gets an .irpa, with the scope in its name.
        """
        code = Path(path)
        written = [code]
        with container.replace_file(code) as file:
            file.write(self._contents.bytes_of(CODE))
        scopes = self._weights.scopes
        for scope in scopes:
            part = f".{quote(scope, safe='')}" if scope and len(scopes) > 1 else ""
            written.append(code.with_suffix(f"{part}{parameters.WRITTEN_SUFFIX}"))
            parameters.save_archive(written[-1], self._weights.entries(scope))
        return written


def name_problem(name: str) -> str | None:
    """Why a function cannot be an attribute of an artifact under a name."""
    if not name.isidentifier() or name.startswith("_"):
        return f"{name!r} is not a name that a method may have"
    if name in _TAKEN:
        return f"{name!r} would be hidden by `{name}` of the artifact"
    return None


_TAKEN = {name for name in vars(Artifact) if not name.startswith("_")} | {
    *("driver", "functions", "manifest", "state", "target"),
}


def load(
    path: str | Path,
    *,
    weights: str | Path | Mapping[str, str | Path] | None = None,
    threads: int | None = None,
    cores: Iterable[int] | None = None,
) -> Artifact:
    """Load an artifact file.

    Args:
        path: the file that `compile(save_to=...)` or `turbine compile` wrote.
        weights: an archive (.irpa, .safetensors or .gguf) that replaces its weights, or a dict from
            scopes to archives.
        threads: how many threads a call runs on; with 1, on the calling thread. By default the
            option `threads`.
        cores: the cores that the program's own threads are pinned to, one each. By default the
            option `cores`.

    Raises:
        ArtifactError: if the file is damaged, or of another version or target.

    >>> import turbine
    >>> turbine.load("model.turbine", weights="tuned.safetensors")  # doctest: +SKIP
    """
    given = {"threads": threads, "cores": cores}
    with config.override(**{name: v for name, v in given.items() if v is not None}):
        artifact = Artifact(container.open_file(Path(path)), _convert_weights(weights))
    artifact.check_runs_here()
    return artifact


def _convert_weights(weights: str | Path | Mapping[str, str | Path] | None) -> Given:
    if isinstance(weights, Mapping):
        return {scope: Path(path) for scope, path in weights.items()}
    return None if weights is None else Path(weights)


def _bind(wanted: Target, weights: Weights) -> list[Any]:
    """The providers for the first call. No method, which would keep the artifact alive."""
    _check_host(wanted, weights.contents.source)
    return weights.providers()


def _check_host(wanted: Target, source: str) -> None:
    if wanted.kind != "cpu":
        return
    if wanted.architecture and wanted.architecture != target.host_architecture():
        raise errors.ArtifactTargetError(
            f"compiled for {wanted.architecture}, this machine is {target.host_architecture()}",
            where=source,
            hint="compile the model on a machine of this kind",
        )
    missing = target.missing_features(wanted)
    if missing:
        raise errors.ArtifactTargetError(
            f"compiled for {wanted.chip}; this CPU lacks {', '.join(missing)}",
            where=source,
            hint='compile with target="cpu:generic" for any CPU of this architecture',
        )


def _check_devices(count: object, source: str) -> None:
    if type(count) is not int or not 1 <= count <= _MOST_DEVICES:
        raise errors.ArtifactError(
            f"the manifest is invalid: the program uses {count!r} devices",
            where=source,
            hint=container.AGAIN,
        )


_MOST_DEVICES = 1024


def _check_iree(compiler: str, source: str) -> None:
    """Raise unless the major and minor version of IREE match: it runs no other code."""
    runtime = str(iree_version.VERSION)
    if compiler.split(".")[:2] != runtime.split(".")[:2]:
        raise errors.ArtifactVersionError(
            f"compiled by IREE {compiler}, this is IREE {runtime}",
            where=source,
            hint="compile the model again, or install the version that wrote it",
        )
