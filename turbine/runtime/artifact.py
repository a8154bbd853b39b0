"""A compiled model as a callable: load it from a file, call it with tensors or arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from iree.runtime import version as iree_version

from turbine import config, errors
from turbine.runtime import container, device, parameters, run_trace, variants
from turbine.runtime.container import Container
from turbine.runtime.executable import Executable
from turbine.runtime.function import check_before
from turbine.runtime.program import Program
from turbine.runtime.session import Session
from turbine.runtime.state import Snapshot
from turbine.runtime.state_dict import StateDict
from turbine.runtime.weights import Given, Weights
from turbine.signature import state_functions


class Artifact(Program):
    """A compiled model, called as the model is, with torch tensors or numpy arrays.

    Loading maps the file and checks everything but the weights. The first call checks the weights
    and precomputes values that depend on them alone. Several entry points are called by name,
    `artifact.decode(x)`; `artifact.state` has the values that the program keeps between calls.

    Threads may call it at the same time. A pickled artifact is the path of its file, and its state
    if it has been called; `pickle_content` is the option for the contents in place of the path.
    """

    def __init__(self, contents: Container, weights: Given = None) -> None:
        self._contents = contents
        try:
            variant = variants.choose(contents.manifest)
            # Of the code that was chosen; the file's own has that of each CPU.
            self.manifest: dict[str, Any] = {**contents.manifest, **variants.to_json([variant])}
            self.target = variant.target
            self._code = contents.bytes_of(variant.code)
            _check_devices(self.target.devices, contents.source)
            _check_iree(self.manifest["provenance"]["iree-base-compiler"], contents.source)
            contents.check(variant.code)
            self.driver = device.driver_for(self.target, device.load_of(self.manifest))
            self._threads = device.placement().threads
            self._weights = Weights(contents, weights)
            executable = Executable(
                self._code,
                self.driver,
                partial(_bind, self._weights),
                device_count=self.target.devices,
                needs_cores=device.is_long(self.driver, device.load_of(self.manifest)),
                may_overflow=self._may_overflow(),
                state=[state_functions(index) for index, _ in enumerate(self.manifest["state"])],
                label=self.manifest["name"],
            )
            label = run_trace.kernel(self.manifest["name"], None, self._code)
            super().__init__(self.manifest, executable, executable.own_values, contents.span, label)
        except (KeyError, TypeError, AttributeError) as error:
            raise errors.ArtifactError(
                f"the manifest is invalid: {error!r}", where=contents.source, hint=container.AGAIN
            ) from error
        if self.state:
            for function in self.functions.values():
                check_before(function, partial(_check_unshared, executable))

    def _may_overflow(self) -> bool:
        """Whether the program may be loaded twice: it has threads, no state, and little memory."""
        size = len(self._code) + sum(w.length for w in self._weights.declared)
        is_small = size <= config.current().overflow_mb << 20
        is_plain = self.target.devices == 1 and not self.manifest["state"]
        return self.driver == device.TASK and is_plain and is_small

    def __repr__(self) -> str:
        texts = [f"{name}{f.signature.text()}" for name, f in self.functions.items()]
        if len(texts) == 1:
            texts = [self.manifest["name"] + self.signature.text()]
        return f"<turbine artifact {', '.join(texts)} for {self.target.text}>"

    def session(self) -> Session:
        """A copy of the state with the same entry points: one for each conversation, say.

        Sessions share the weights. Threads may call different ones at the same time. While sessions
        are open, calls of the artifact itself are errors.

        >>> import torch, turbine
        >>> counter = torch.nn.BatchNorm1d(2)
        >>> artifact = turbine.aot.export(counter, args=(torch.ones(4, 2),)).compile()
        >>> with artifact.session() as one, artifact.session() as other:
        ...     _ = one(torch.ones(4, 2)), one(torch.ones(4, 2)), other(torch.ones(4, 2))
        ...     print(int(one.state["num_batches_tracked"]))
        2
        """
        if not self.state:
            raise errors.StateError(
                "the program keeps no state, so it has no sessions",
                hint="call the artifact itself, from as many threads as you like",
            )
        return Session(self, self._executable.copy(self._owner))

    def __deepcopy__(self, memo: dict[int, Any]) -> Artifact:
        """The artifact itself if it has no state; otherwise another, with a copy of the state."""
        if not self.state:
            return self
        with config.override(threads=self._threads):
            copied = Artifact(self._whole_contents(), self._weights.given)
        copied.state.restore(self.state.snapshot())
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        contents = self._whole_contents()
        by_content = config.current().pickle_content or contents.source == container.IN_MEMORY
        given = {scope: str(path.absolute()) for scope, path in self._weights.given.items()}
        origin = Origin(
            str(Path(contents.source).absolute()),
            contents.digest,
            tuple(given.items()),
            self._threads,
            bool(self.state),
        )
        content = bytes(contents.data) if by_content else None
        return _restore, (origin, content, self.state.snapshot())

    def check_runs_here(self) -> None:
        """Raise unless this machine has the CPU features and devices that the code needs."""
        variants.check_host(self._contents.manifest, self._contents.source)
        self._executable.find_devices()

    @property
    def weight_names(self) -> list[str]:
        """The names of the weights that are not part of the code."""
        return [entry["name"] for entry in self.manifest["weights"]]

    def reset(self) -> None:
        """Reset state to the values it was exported with."""
        self._executable.reset()

    def save(self, path: str | Path) -> None:
        """Write the artifact to one file, which replaces an old one atomically.

        Weights in an archive stay there, and the new file refers to it.
        """
        container.check_suffix(Path(path), ".turbine")
        container.save(Path(path), *self._parts(Path(path).parent))

    def _whole_contents(self) -> Container:
        """The file; if weights are in no file, another with them."""
        if not self._weights.sections_in_memory():
            return self._contents
        return container.anonymous(*self._parts(Path(self._contents.source).parent))

    def _parts(self, folder: Path) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
        """The manifest and the sections of a file in a folder."""
        sections = {name: self._contents.bytes_of(name) for name in self._contents.sections}
        sections |= self._weights.sections_in_memory()
        manifest = {**self._contents.manifest, **self._weights.as_seen_from(folder)}
        return manifest, [*sections.items()]

    def save_vmfb(self, path: str | Path) -> list[Path]:
        """Write a .vmfb for IREE's tools, and an .irpa beside it if there are weights.

        Each of several scopes gets an .irpa, with the scope in its name.
        """
        code = Path(path)
        container.check_suffix(code, ".vmfb")
        written = [code]
        with container.replace_file(code) as file:
            file.write(self._code)
        scopes = self._weights.scopes
        for scope in scopes:
            part = f".{quote(scope, safe='')}" if scope and len(scopes) > 1 else ""
            written.append(code.with_suffix(f"{part}{parameters.WRITTEN_SUFFIX}"))
            parameters.save_archive(written[-1], self._weights.entries(scope))
        return written


@dataclass(frozen=True)
class Origin:
    """What an artifact was loaded from, for copies in other processes."""

    path: str
    digest: bytes
    weights: tuple[tuple[str, str], ...]
    threads: int
    has_state: bool


def _restore(origin: Origin, content: bytes | None, snapshot: Snapshot) -> Artifact:
    """An artifact from a pickle. Those without state are shared if they are from one file."""
    if content is not None:
        artifact = _open(origin, container.from_bytes(content, origin.path))
    elif origin.has_state:
        artifact = _open_file(origin)
    else:
        artifact = _open_shared(origin)
    artifact.state.restore(snapshot)
    return artifact


def _open_file(origin: Origin) -> Artifact:
    contents = container.open_file(Path(origin.path))
    if contents.digest != origin.digest:
        raise errors.ArtifactError(
            "the file is not the one that the pickled artifact was loaded from",
            where=origin.path,
            hint="give each version a path of its own, or set the option pickle_content",
        )
    return _open(origin, contents)


# Tasks of a pool bring their artifact with them, each time.
_open_shared = lru_cache(maxsize=4)(_open_file)


def _open(origin: Origin, contents: Container) -> Artifact:
    with config.override(threads=origin.threads):
        artifact = Artifact(contents, _convert_weights(dict(origin.weights)))
    artifact.check_runs_here()
    return artifact


def name_problem(name: str) -> str | None:
    """Why a function cannot be an attribute of an artifact under a name."""
    if not name.isidentifier() or name.startswith("_"):
        return f"{name!r} is not a name that a method may have"
    if name in _TAKEN:
        return f"{name!r} would be hidden by `{name}` of the artifact"
    return None


_TAKEN = {name for name in dir(Artifact) if not name.startswith("_")} | {
    *("driver", "functions", "manifest", "state", "target"),
}


def load(
    path: str | Path,
    *,
    weights: str | Path | Mapping[str, Any] | None = None,
    threads: int | None = None,
    cores: Iterable[int] | None = None,
) -> Artifact:
    """Load an artifact file.

    Args:
        path: the file that `compile(save_to=...)` or `turbine compile` wrote.
        weights: what replaces its weights: an archive (.irpa, .safetensors or .gguf), a folder of
            .safetensors files, a state dict, whose values are copied, or a dict from scopes to
            archives.
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


def _convert_weights(weights: str | Path | Mapping[str, Any] | None) -> Given:
    if isinstance(weights, Mapping):
        if not all(isinstance(value, str | Path) for value in weights.values()):
            return StateDict(weights)
        return {scope: Path(path) for scope, path in weights.items()}
    return None if weights is None else Path(weights)


def _bind(weights: Weights) -> list[Any]:
    """The providers for the first call. No method, which would keep the artifact alive."""
    variants.check_host(weights.contents.manifest, weights.contents.source)
    return weights.providers()


def _check_unshared(executable: Executable) -> None:
    """Raise if there are sessions: a call of the artifact would be of none of them."""
    if executable.has_copies():
        raise errors.StateError(
            "the artifact has open sessions, and this call is of none of them",
            hint="call a session, or close them: session.close()",
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
