"""Type checkers see what users mean: right code infers fully, and each mistake is found where it is made."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TypeAlias

import leftfold

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RIGHT, WRONG = HERE / "right.py", HERE / "wrong.py"
Errors: TypeAlias = dict[int, set[str]]


def expected(checker: int) -> Errors:
    """The code or rule that each line of wrong.py names for a checker: 0 is mypy, 1 is pyright."""
    checkpoints = (
        (n, re.search(r"# E: (\S+), (\S+)$", line)) for n, line in enumerate(WRONG.read_text().splitlines(), 1)
    )
    return {number: set(checkpoint[checker + 1].split("+")) for number, checkpoint in checkpoints if checkpoint}


def mypy() -> dict[Path, Errors]:
    files = [str(file.relative_to(ROOT)) for file in (RIGHT, WRONG)]
    command = [sys.executable, "-m", "mypy", "--output", "json", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[Path, Errors] = {RIGHT: {}, WRONG: {}}
    for line in done.stdout.splitlines():
        if line.startswith("{") and (error := json.loads(line))["severity"] == "error":
            found[ROOT / error["file"]].setdefault(error["line"], set()).add(error["code"])
    return found


def pyright() -> dict[Path, Errors]:
    python = ["--pythonpath", sys.executable]  # else it looks into whatever `python` is on PATH
    files = [str(file.relative_to(ROOT)) for file in (RIGHT, WRONG)]
    command = [sys.executable, "-m", "pyright", *python, "--outputjson", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), f"pyright did not run (it needs Node): {done.stderr}"
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(files)
    found: dict[Path, Errors] = {RIGHT: {}, WRONG: {}}
    for error in report["generalDiagnostics"]:
        line = error["range"]["start"]["line"] + 1
        found[Path(error["file"])].setdefault(line, set()).add(error.get("rule", error["message"]))
    return found


def test_mypy_infers_everything_in_right_code_and_finds_each_mistake_and_no_other() -> None:
    assert mypy() == {RIGHT: {}, WRONG: expected(0)}


def test_pyright_infers_everything_in_right_code_and_finds_each_mistake_and_no_other() -> None:
    assert pyright() == {RIGHT: {}, WRONG: expected(1)}


def test_the_mistakes_are_marked() -> None:
    assert len(expected(0)) == len(expected(1)) >= 20


def test_the_package_says_that_it_is_typed() -> None:
    """Without the file of PEP 561 type checkers of its users ignore its types."""
    assert (Path(leftfold.__file__).parent / "py.typed").is_file()
