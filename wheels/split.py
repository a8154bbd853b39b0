"""Split the wheel of this repository in two: turbine-runtime, and turbine, which depends on it.

    python -m wheels.split build/complete/turbine-0.1.0-py3-none-any.whl dist

The wheel that `pip wheel .` builds is complete, as an editable install is. turbine-runtime gets
what `runtime_files` finds, and turbine the rest, so that no file is in both.
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from dataclasses import dataclass, replace
from email import message_from_string
from email.policy import compat32
from io import StringIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from wheels.imports import files_of, imports_of

# Where the runtime starts: these files, and all of these folders. The rest is what they import.
ROOTS = ("turbine/__init__.py", "turbine/__main__.py", "turbine/runtime/")
# What the runtime's files import of other projects when they are loaded.
REQUIRES = ("iree-base-runtime", "ml_dtypes", "numpy")
EXTRAS = ("gguf",)
SCRIPTS = "console_scripts"  # the entry points that come with the runtime
NAME, RUNTIME = "turbine", "turbine-runtime"
SUMMARY = "Run models that Turbine compiled, without PyTorch and without a compiler"

Files = Mapping[str, bytes]  # by path in the wheel


def runtime_files(files: Files) -> set[str]:
    """The paths of the runtime: the roots, what they import, and data beside their modules.

    An import in a function is followed below the roots' folders and to modules directly under
    turbine/. One that leads elsewhere is for the whole package, and fails without it.
    """
    found: set[str] = set()
    ahead = [path for path in files if path.startswith(ROOTS) and path.endswith(".py")]
    while ahead:
        path = ahead.pop()
        if path not in found:
            found.add(path)
            ahead += _imported(path, files)
    folders = {path.rpartition("/")[0] for path in found if path.endswith("/__init__.py")}
    data = {p for p in files if not p.endswith(".py") and p.rpartition("/")[0] in folders}
    return found | data


def _imported(path: str, files: Files) -> Iterator[str]:
    for item in imports_of(path, files[path].decode()):
        if item.for_types:
            continue
        for file in files_of(item.name):
            if file in files and (item.at_load or _is_near(file)):
                yield file


def _is_near(file: str) -> bool:
    return file.startswith(ROOTS) or file.count("/") == 1


@dataclass(frozen=True)
class Wheel:
    """A wheel's parts."""

    name: str
    version: str
    files: Files  # to be installed
    info: Files  # about them, by name in the .dist-info folder, without RECORD

    @property
    def stem(self) -> str:
        """The name and version as files have it."""
        return f"{self.name.replace('-', '_')}-{self.version}"


def split(complete: Path, folder: Path) -> list[Path]:
    """Write the wheels of turbine-runtime and turbine; gives their paths."""
    whole = read(complete)
    inner = runtime_files(whole.files)
    runtime = Wheel(
        RUNTIME,
        whole.version,
        {path: data for path, data in whole.files.items() if path in inner},
        {
            **whole.info,
            "METADATA": _runtime_metadata(whole.info["METADATA"]),
            "entry_points.txt": _entry_points(whole.info["entry_points.txt"], is_runtime=True),
        },
    )
    rest = replace(
        whole,
        files={path: data for path, data in whole.files.items() if path not in inner},
        info={
            **whole.info,
            "METADATA": _whole_metadata(whole.info["METADATA"]),
            "entry_points.txt": _entry_points(whole.info["entry_points.txt"], is_runtime=False),
        },
    )
    folder.mkdir(parents=True, exist_ok=True)
    return [write(runtime, folder), write(rest, folder)]


def read(path: Path) -> Wheel:
    """The parts of a wheel."""
    name, version, _ = path.name.split("-", 2)
    prefix = f"{name}-{version}.dist-info/"
    with ZipFile(path) as archive:
        parts = {row: archive.read(row) for row in archive.namelist() if not row.endswith("/")}
    info = {row.removeprefix(prefix): parts.pop(row) for row in [*parts] if row.startswith(prefix)}
    # Installers make the first anew; nothing reads the second.
    for row in ("RECORD", "top_level.txt"):
        info.pop(row, None)
    return Wheel(name, version, parts, info)


def write(wheel: Wheel, folder: Path) -> Path:
    """Write a .whl file; gives its path."""
    info = f"{wheel.stem}.dist-info"
    rows = {**wheel.files, **{f"{info}/{name}": data for name, data in wheel.info.items()}}
    record = [f"{path},{_digest(data)},{len(data)}\n" for path, data in rows.items()]
    rows[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"]).encode()
    path = folder / f"{wheel.stem}-py3-none-any.whl"
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, data in rows.items():
            archive.writestr(name, data)
    return path


def _digest(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return f"sha256={digest.decode().rstrip('=')}"


def _runtime_metadata(text: bytes) -> bytes:
    """The same author, licence and versions, with fewer requirements."""
    message = message_from_string(text.decode())
    required, extras = message.get_all("Requires-Dist", []), message.get_all("Provides-Extra", [])
    for field in ("Requires-Dist", "Provides-Extra"):
        del message[field]
    message.replace_header("Name", RUNTIME)
    message.replace_header("Summary", SUMMARY)
    for requirement in required:
        _, _, extra = requirement.partition("extra == ")
        if extra.strip("\"'") in EXTRAS or (not extra and _project(requirement) in REQUIRES):
            message["Requires-Dist"] = requirement
    for extra in extras:
        if extra in EXTRAS:
            message["Provides-Extra"] = extra
    return message.as_bytes(policy=compat32.clone(max_line_length=None))


def _whole_metadata(text: bytes) -> bytes:
    message = message_from_string(text.decode())
    message["Requires-Dist"] = f"{RUNTIME}=={message['Version']}"
    return message.as_bytes(policy=compat32.clone(max_line_length=None))


def _project(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    return found[0] if found is not None else ""


def _entry_points(text: bytes, *, is_runtime: bool) -> bytes:
    """The command comes with the runtime, every other entry point with the rest."""
    parser = ConfigParser(delimiters=("=",))
    parser.read_string(text.decode())
    for group in parser.sections():
        if (group == SCRIPTS) != is_runtime:
            parser.remove_section(group)
    written = StringIO()
    parser.write(written)
    return written.getvalue().encode()


if __name__ == "__main__":
    for path in split(Path(sys.argv[1]), Path(sys.argv[2])):
        print(path)
