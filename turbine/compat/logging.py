"""Loggers of iree-turbine, with the level of `debugging.flags`."""

from __future__ import annotations

import logging

from turbine.compat.debugging import flags


class DefaultFormatter(logging.Formatter):
    """Time, level, location and message on one line."""

    def __init__(self) -> None:
        super().__init__(
            "%(asctime)s %(levelname)s [%(filename)s:%(lineno)d] %(message)s", "%m-%d %H:%M:%S"
        )


def get_logger(name: str) -> logging.Logger:
    """A logger; it writes to stderr if the debug flags set a log level."""
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
