"""The entry point: runs a command and turns whatever it raises into lines on standard error and an exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

import typer

from leftfold.cli.commands import app
from leftfold.cli.failures import INTERRUPTED, tell
from leftfold.cli.hints import spec_in
from leftfold.errors import is_interruption

__all__ = ["main", "run"]

TRACEBACK = "LEFTFOLD_TRACEBACK"


def main() -> None:
    """Runs the command line of this process."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs a command line and returns its exit code: design §7 lists them."""
    whole = "--traceback" in arguments or os.environ.get(TRACEBACK, "") not in ("", "0")
    # What adapters log is for `run` and `dev`, which set up logging; elsewhere what matters is raised.
    logging.getLogger("leftfold").addHandler(logging.NullHandler())
    try:
        command = typer.main.get_command(app)
        code = command.main(args=list(arguments), prog_name="leftfold", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return _deaf()
    except Exception as error:  # noqa: BLE001  # whatever comes is told in a line
        if isinstance(error, SystemError) and is_interruption(error):
            return INTERRUPTED
        return tell(error, whole=whole, app=spec_in(arguments))
    return int(code or 0)


def _deaf() -> int:
    """Nobody reads our output any more, as after `| head`; Python must not find out again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141
