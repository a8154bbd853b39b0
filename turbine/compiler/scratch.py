"""The folder of a compiler process for temporary files: named by its parent, made by itself.

A signal that ends the parent while the process starts then leaves no folder behind.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile


def choose() -> str:
    """A new path; OSError if there is no directory for temporary files."""
    root = tempfile.gettempdir()
    os.stat(root)
    return os.path.join(root, f"turbine-compiler-{secrets.token_hex(8)}")


def make(path: str) -> None:
    """Make the folder, for its owner alone."""
    os.mkdir(path, 0o700)


def remove(path: str) -> None:
    """Remove the folder, even if a linker is about to write to it: it finds no such path then."""
    gone = f"{path}-gone"
    with contextlib.suppress(OSError):
        os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)
