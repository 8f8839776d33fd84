"""`python -m stategraph.testing MODULE:NAME`: reads the command line and prints a table. Nothing
else lives here."""

import argparse
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from .conformance import CHECKS, GROUPS
from .suite import CaseResult, check_saver, format_result


def main(given: Sequence[str] | None = None) -> int:
    """Check what the command line names; the exit code: 0 all well, 1 a check failed, 2 there is
    nothing to check."""
    parser = argparse.ArgumentParser(
        prog="python -m stategraph.testing",
        description="Check a checkpointer. Exit code 1 if a check failed.",
    )
    parser.add_argument(
        "what", nargs="?", metavar="MODULE:NAME", help="a SaverChecks, or a function of a folder"
    )
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="NAME", help="groups, or patterns of names"
    )
    parser.add_argument("--scale", type=int, help="how much to do: 1 is quick, 100 takes long")
    parser.add_argument("--seed", type=int, help="where chance begins")
    parser.add_argument(
        "--world", dest="modes", action="append", choices=["sync", "async"], help="both by default"
    )
    parser.add_argument(
        "--not-durable", dest="durable", action="store_false", default=None, help="it dies with us"
    )
    parser.add_argument("--list", action="store_true", help="list all checks and what they mean")
    asked = parser.parse_args(given)
    if asked.list:
        print("\n".join(_list_checks()))
        return 0
    if asked.what is None:
        parser.error("which checkpointer? MODULE:NAME")
    try:
        what = import_named(asked.what)
    except (ImportError, AttributeError, ValueError) as error:
        parser.error(str(error))
    names = ("scale", "seed", "modes", "durable")
    settings = {name: getattr(asked, name) for name in names if getattr(asked, name) is not None}
    report = check_saver(what, only=asked.only, tell=_print_result, **settings)
    print(report.ending)
    if not report.results:
        parser.error(f"there is no check named {' or '.join(asked.only)}: see --list")
    return 0 if report.ok else 1


def import_named(name: str) -> Any:
    """What `module:name` names; modules of the working directory are found too.

    Raises:
        ImportError, AttributeError, ValueError: it cannot be found.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(f"{name!r} must be MODULE:NAME, such as my_saver:TestMine")
    if "" not in sys.path:
        sys.path.insert(0, "")
    return getattr(import_module(module), attribute)


def _print_result(result: CaseResult) -> None:
    print(format_result(result), flush=True)


def _list_checks() -> Sequence[str]:
    lines = []
    for group, about in GROUPS.items():
        lines.append(f"{group}: {about}")
        for check in CHECKS.values():
            if check.group == group:
                lines.append(f"    {check.name.replace('_', ' ')}")
                lines += textwrap.wrap(
                    check.about, 110, initial_indent=" " * 8, subsequent_indent=" " * 8
                )
    return lines


if __name__ == "__main__":
    sys.exit(main())
