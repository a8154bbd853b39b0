"""The `turbine` command: arguments in, an exit code out."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence

from turbine import config, errors, whole_package
from turbine.cli.bench import bench_artifact
from turbine.cli.doctor import check_installation
from turbine.cli.inspect import inspect_artifact
from turbine.cli.options import Assignment, Verb, add_options, call
from turbine.cli.profile import profile_artifact
from turbine.cli.run import run_artifact
from turbine.cli.trace import show_trace
from turbine.version import __version__

RUNTIME_VERBS: dict[str, Verb] = {
    "run": run_artifact,
    "bench": bench_artifact,
    "profile": profile_artifact,
    "inspect": inspect_artifact,
    "trace": show_trace,
    "doctor": check_installation,
}
MORE_VERBS = f"{whole_package.HINT} adds the verbs that compile"
FAILED = 1
INTERRUPTED = 130  # what a shell reports for a command that SIGINT ended
READER_GONE = 141  # likewise for SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb. The exit code is 0 for success, 1 for failure, 2 for an invalid command line.

    >>> from turbine.cli.main import main
    >>> main(["--version"])
    turbine 0.1.0
    0
    """
    try:
        code = _main(sys.argv[1:] if argv is None else list(argv))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more when it ends; that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE


def verbs() -> dict[str, Verb]:
    """The verbs that are installed, by name."""
    if not whole_package.is_installed():
        return RUNTIME_VERBS
    from turbine.cli import toolchain

    return {**toolchain.VERBS, **RUNTIME_VERBS}


def _main(words: list[str]) -> int:
    known = verbs()
    try:
        options = _parse(words, known)
    except SystemExit as stop:  # argparse has printed help or what is wrong
        return int(stop.code or 0)
    try:
        with config.override(**{option.name: option.value for option in options.set}):
            return call(known[options.verb], options)
    except BrokenPipeError:
        raise
    except (errors.TurbineError, OSError) as error:
        _report(error, options.traceback)
        return FAILED


def _parse(words: list[str], known: dict[str, Verb]) -> Namespace:
    parser = _parser(known)
    if not words:
        parser.print_help(sys.stderr)
        raise SystemExit(2)
    if not words[0].startswith("-") and words[0] not in known:
        more = f"; {parser.epilog}" if parser.epilog is not None else ""
        parser.error(errors.unknown("verb", words[0], known) + more)
    return parser.parse_args(words)


def _parser(known: dict[str, Verb]) -> ArgumentParser:
    parser = ArgumentParser(
        "turbine",
        description="Compile PyTorch models and run them.",
        epilog=None if whole_package.is_installed() else MORE_VERBS,
    )
    parser.add_argument("--version", action="version", version=f"turbine {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, verb in known.items():
        summary, _, details = (inspect.getdoc(verb) or "").partition("\n\n")
        own = verbs.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=details,
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        add_options(own, verb)
        _add_common_options(own)
    return parser


def _add_common_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=Assignment.parse,
        metavar="NAME=VALUE",
        help="set an option of turbine.config, such as cache=0 (repeatable)",
    )
    parser.add_argument(
        "--traceback", action="store_true", help="show the Python traceback of an error"
    )


def _report(error: BaseException, with_traceback: bool) -> None:
    if with_traceback:
        traceback.print_exception(error)
    print(f"error: {error}", file=sys.stderr)
    if isinstance(error, errors.ExportError) and error.__cause__ is not None and not with_traceback:
        print("  more: --traceback shows how it came to this", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
