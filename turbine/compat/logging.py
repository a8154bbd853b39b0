"""Loggers of iree-turbine: a name in, a logger that talks as `debugging.flags` say out."""

from __future__ import annotations

import logging

from turbine.compat.debugging import flags


class DefaultFormatter(logging.Formatter):
    """Time, level, place and message on a line."""

    def __init__(self) -> None:
        super().__init__(
            "%(asctime)s %(levelname)s [%(filename)s:%(lineno)d] %(message)s", "%m-%d %H:%M:%S"
        )


def get_logger(name: str) -> logging.Logger:
    """A logger; with a log level among the debug flags it writes to stderr from that level on."""
    logger = logging.getLogger(name)
    if flags.log_level != logging.NOTSET:
        logger.setLevel(flags.log_level)
        logger.propagate = False
        if _stderr not in logger.handlers:
            logger.addHandler(_stderr)
    return logger


_stderr = logging.StreamHandler()
_stderr.setFormatter(DefaultFormatter())
aot_logger = get_logger("turbine.aot")
runtime_logger = get_logger("turbine.runtime")
