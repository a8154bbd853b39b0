"""Compiled code in a folder of the user: a file and a note for each device type."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from turbine import errors, permissions
from turbine.runtime import container
from turbine.runtime.device import Device


@dataclass(frozen=True)
class CodeFolder:
    """Files named by `Device.get_type_key_hash`. The note has digests of source and code."""

    path: Path

    def read(self, device: Device, source: bytes) -> bytes | None:
        """The code compiled from a source; None if it is missing or damaged.

        Raises if other users may write to the folder or the file.
        """
        note = self._note(device)
        if note.get("source") != _digest(source):
            return None
        try:
            _check_writers(self.path, self.path.stat())
            with self._code(device).open("rb") as file:
                _check_writers(self._code(device), os.fstat(file.fileno()))
                code = file.read()
        except OSError:
            return None
        return code if note.get("code") == _digest(code) else None

    def only(self, device: Device) -> bytes:
        """The code for a device, for any source; without a note it is not checked."""
        path = self._code(device)
        try:
            code = path.read_bytes()
        except OSError as error:
            there = ", ".join(sorted(p.name for p in self.path.glob("*.vmfb"))) or "no .vmfb files"
            raise errors.ArtifactError(
                f"the folder has no code for {device}: {error.strerror}: {path.name}",
                where=str(self.path),
                hint=f"compile with jit_compile(file_cache_dir=...) on this machine; found {there}",
            ) from error
        expected = self._note(device).get("code")
        if expected is not None and expected != _digest(code):
            raise errors.ArtifactError(
                "the code is damaged", where=str(path), hint="remove the file and compile again"
            )
        return code

    def write(self, device: Device, source: bytes, code: bytes) -> None:
        """Write code and note; old files are replaced atomically."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        note = {"source": _digest(source), "code": _digest(code), "device": device.type_cache_key}
        with container.replace_file(self._code(device)) as file:
            file.write(code)
        with container.replace_file(self._note_path(device)) as file:
            file.write(json.dumps(note, indent=1).encode())

    def _code(self, device: Device) -> Path:
        return self.path / f"{device.get_type_key_hash()}.vmfb"

    def _note_path(self, device: Device) -> Path:
        return self._code(device).with_suffix(".json")

    def _note(self, device: Device) -> dict[str, str]:
        try:
            note = json.loads(self._note_path(device).read_bytes())
        except (OSError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}


def _check_writers(path: Path, status: os.stat_result) -> None:
    problem = permissions.problem(status)
    if problem is not None:
        raise errors.ArtifactError(
            f"code from this folder is not trusted: {path.name} {problem}",
            where=str(path.parent),
            hint=f"`chmod go-w {path}` if all that is in it is yours, or name another folder",
        )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
