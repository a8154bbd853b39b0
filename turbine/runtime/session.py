"""Sessions: states of an artifact beside each other, over the same weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turbine.runtime.executable import Values
from turbine.runtime.program import Program
from turbine.runtime.state import Snapshot

if TYPE_CHECKING:
    from turbine.runtime.artifact import Artifact


class Session(Program):
    """One state of an artifact, called as the artifact is; `artifact.session()` opens it.

    It starts with a copy of the artifact's state. `copy.deepcopy` and pickles copy the state that
    it has then; `with` closes it at the end.
    """

    def __init__(self, artifact: Artifact, owner: Values) -> None:
        super().__init__(
            artifact.manifest, artifact._executable, owner, artifact._span, artifact._label
        )
        self.artifact = artifact

    def __repr__(self) -> str:
        closed = "closed " * self._owner.is_closed
        return f"<{closed}session of {self.artifact!r}>"

    def reset(self) -> None:
        """Start again with a copy of the artifact's state."""
        self._executable.restart(self._owner)

    def close(self) -> None:
        """Free the state; calls are errors from now on."""
        self._executable.close(self._owner)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> Session:
        return Session(self.artifact, self._executable.copy(self._owner))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.artifact, self.state.snapshot())


def _restore(artifact: Artifact, snapshot: Snapshot) -> Session:
    session = artifact.session()
    session.state.restore(snapshot)
    return session
