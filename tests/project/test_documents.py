from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.cli.shell import ROOT, parse_words

DOCUMENTS = (
    "docs/tutorial.md",
    "README.md",
    "docs/commands.md",
    "docs/faust.md",
    "docs/http.md",
    "docs/processes.md",
    "docs/reactions.md",
    "docs/simulation.md",
)
TYPED = (
    *DOCUMENTS,
    "docs/archive.md",
    "docs/backup.md",
    "docs/dataframes.md",
    "docs/queries.md",
    "docs/reference.md",
    "docs/streaming.md",
)


def program(name: str, tmp_path: Path) -> Path:
    """The Python blocks of a document, in order, as one file whose lines have the document's numbers."""
    python, lines = False, []
    for line in (ROOT / name).read_text("utf-8").splitlines():
        inside = python and line != "```"
        lines.append(line if inside else "")
        python = line == "```python" or inside
    file = tmp_path / (Path(name).stem.lower() + "_program.py")
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return file


def notebook(tmp_path: Path) -> Path:
    """The code of the notebook, as one file."""
    cells = json.loads((ROOT / "docs/notebooks/archive.ipynb").read_text("utf-8"))["cells"]
    file = tmp_path / "notebook_program.py"
    file.write_text("\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"), "utf-8")
    return file


def run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that the Python blocks of a document make."""
    file = program(name, tmp_path)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, file.stem, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_code_of_a_document_runs_as_it_stands(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert program(name, tmp_path).read_text().count("\n\n") > 1
    run(name, tmp_path, monkeypatch)


def test_the_apps_of_the_page_about_processes_accept_what_they_send_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = run("docs/processes.md", tmp_path, monkeypatch)
    apps = [page.orders_app, page.payments_app, page.checkout_app]
    accepting = {decider.name: app.senders_to(decider.name) for app in apps for decider in app.deciders}
    sent = {(app.name, p.name, c.__leftfold__.category) for app in apps for p in app.processes for c in p.sends}
    assert {category for _, _, category in sent} == {"orders", "payments"}
    assert [one for one in sorted(sent) if one[1] not in accepting[one[2]]] == []


def test_the_code_of_every_document_is_typed(tmp_path: Path) -> None:
    programs = [*(str(program(name, tmp_path)) for name in TYPED), str(notebook(tmp_path))]
    command = [sys.executable, "-m", "mypy", "--strict", *programs]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_decision_is_in_their_index() -> None:
    pages = {path.name for path in (ROOT / "docs/decisions").glob("0*.md")}
    assert set(re.findall(r"\((\d+[^)]*\.md)\)", (ROOT / "docs/decisions/index.md").read_text("utf-8"))) == pages


def test_the_readme_prints_what_it_says(tmp_path: Path) -> None:
    file = program("README.md", tmp_path)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True)
    (promised,) = re.findall(r"print\(.*\)\s+# (.+)", file.read_text())
    assert done.stdout.strip() == promised


def test_the_readmes_example_is_short() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 30


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {link}"
        for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text("utf-8"))
        if not (path.parent / link).exists()
    ]
    assert not broken


def commands() -> list[list[str]]:
    """Every `leftfold ...` in shell blocks and in running text of the README and the pages, without its first word."""
    found = set[str]()
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = path.read_text("utf-8")
        found |= {line.removeprefix("leftfold ") for line in re.findall(r"`(leftfold [^`]+)`", text)}
        for block in re.findall(r"```(?:sh)?\n(.*?)```", text, re.DOTALL):
            lines = block.replace("\\\n", " ")
            found |= set(re.findall(r"(?:^|\$ |&& |; )leftfold ([^#|&;<>\n]+)", lines, re.MULTILINE))
    return [shlex.split(line) for line in sorted(found)]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_the_command_line_takes_what_documents_type(words: list[str]) -> None:
    parse_words(words)


def test_there_are_many_commands_in_documents() -> None:
    assert len(commands()) > 100
