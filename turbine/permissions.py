"""Check the ownership of a file: its status in, the reason not to trust it out."""

from __future__ import annotations

import os
import stat

_ROOT = 0


def problem(status: os.stat_result) -> str | None:
    """Why another user may have written a file or a folder; None if only we and root may."""
    if status.st_uid not in (os.geteuid(), _ROOT):
        return f"belongs to user {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written by other users"
    return None
