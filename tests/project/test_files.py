from __future__ import annotations

import os
import re
import statistics
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("framework", "events", "services", "projections", "tests", "benchmarks")
LONGEST, MOST_ENTRIES, MOST_IN_ROOT = 400, 14, 20


def tracked(*patterns: str) -> list[Path]:
    """The files that are, or are about to be, in the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in found if (ROOT / name).is_file()]


PYTHON = tracked(*(f"{source}/**/*.py" for source in SOURCES), *(f"{source}/*.py" for source in SOURCES))


def test_no_file_is_longer_than_a_reader_likes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = {path.relative_to(ROOT): len(path.read_text("utf-8").splitlines()) for path in PYTHON}
    framework = [count for path, count in lines.items() if path.parts[0] == "framework"]
    with capsys.disabled():
        print(
            f"\n{len(lines)} files, {sum(lines.values())} lines, median {statistics.median(lines.values()):g}; "
            f"framework: {len(framework)} files, {sum(framework)} lines, median {statistics.median(framework):g}"
        )
    assert not {path: count for path, count in lines.items() if count > LONGEST}


def test_no_folder_of_the_package_has_more_entries_than_a_reader_likes() -> None:
    package = ROOT / "framework" / "leftfold"
    entries: dict[Path, set[str]] = {}
    for path in PYTHON:
        if path.is_relative_to(package) and path.name != "__init__.py":
            for folder in path.relative_to(package).parents:
                below = path.relative_to(package).relative_to(folder)
                entries.setdefault(folder, set()).add(below.parts[0])
    most = {folder: MOST_IN_ROOT if folder == Path() else MOST_ENTRIES for folder in entries}
    assert not {folder: sorted(found) for folder, found in entries.items() if len(found) > most[folder]}


MACHINE_PATHS = re.compile(r"/(?:home|root|Users|work|opt|mnt)/[\w.-]+|\b[A-Z]:\\\\")
REGISTRIES = re.compile(
    r"https?://[\w.-]*(?:pypi|pythonhosted|maven|jfrog|artifactory|nexus|npmjs|registry|mirror)[\w.-]*", re.IGNORECASE
)
TEXT = [path for path in tracked() if path.suffix not in {".png", ".svg"} and path.name != "LICENSE"]
# Paths inside our own container image, and inside the one of Kafka.
ALLOWED = ("/opt/kafka/",)


@pytest.mark.parametrize(
    ("what", "pattern"), [("a path of some machine", MACHINE_PATHS), ("a repository's address", REGISTRIES)]
)
def test_no_file_names(what: str, pattern: re.Pattern[str]) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in TEXT
        if path != Path(__file__)
        for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1)
        if (match := pattern.search(line)) and not any(allowed in line for allowed in ALLOWED)
    ]
    assert not found, f"{what}: {found[:10]}"


def test_every_sentence_of_a_test_is_one() -> None:
    named = re.compile(r"^(?: {4})?def (test_\w+)\(", re.MULTILINE)
    short = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in PYTHON
        if path.name.startswith("test_")
        for name in named.findall(path.read_text("utf-8"))
        if name.count("_") < 2
    ]
    assert not short


def test_nothing_big_or_binary_is_committed() -> None:
    assert not [
        path.relative_to(ROOT)
        for path in tracked()
        if path.stat().st_size > 300_000 and path.name != "requirements.lock"
    ]


def test_the_lock_pins_every_dependency_by_hash() -> None:
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    entries = re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)(.*)$", lock, re.MULTILINE)
    assert len(entries) > 50
    for block in re.split(r"\n(?=[A-Za-z0-9_.-]+==)", lock)[1:]:
        assert "--hash=sha256:" in block, block.splitlines()[0]
    assert "--index-url" not in lock
    assert "--find-links" not in lock


def test_every_dependency_is_explained() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {re.split(r"[\[<>=! ]", requirement)[0] for group in groups for requirement in group} - {"leftfold"}
    explained = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    assert not sorted(name for name in names if f"`{name}`" not in explained)


def test_the_oldest_typer_that_is_accepted_has_what_the_command_line_uses() -> None:
    import tomllib

    from packaging.requirements import Requirement

    found = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    (typer,) = [one for one in map(Requirement, found) if one.name == "typer"]
    # TyperException came with 0.27.2; an error before it would be an AttributeError with exit code 1.
    assert not typer.specifier.contains("0.27.1")


def test_the_entrance_files_are_there() -> None:
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "Makefile", ".ci/run", "docker-compose.yml", "Dockerfile"):
        assert (ROOT / name).stat().st_size > 0, name
    assert "Apache License" in (ROOT / "LICENSE").read_text("utf-8")
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_another_python_makes_another_environment(tmp_path: Path) -> None:
    """`make` with programs that only write down what they were asked for."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for place, version in (("python3.11", 11), ("python3.12", 12), (".venv/bin/python", 11), (".venv/bin/pip", 0)):
        program = f'#!/bin/sh\necho "$0 $*" >> calls\ncase "$*" in *"print(sys.version_info"*) echo {version};; esac\n'
        (tmp_path / place).write_text(program)
        (tmp_path / place).chmod(0o755)
    for name in ("requirements.lock", "pyproject.toml", ".venv/.lock"):
        (tmp_path / name).touch()
    (tmp_path / ".venv" / ".made-from-lock").touch()

    def makes_environment(*chosen: str) -> bool:
        (tmp_path / "calls").write_text("")
        without = {name: value for name, value in os.environ.items() if name != "PYTHON"}
        command = ["make", "-f", str(ROOT / "Makefile"), ".venv/.made-from-lock", *chosen]
        subprocess.run(command, cwd=tmp_path, env=without, check=True, capture_output=True)
        return "-m venv --clear .venv" in (tmp_path / "calls").read_text()

    assert not makes_environment()
    assert not makes_environment("PYTHON=./python3.11")
    assert makes_environment("PYTHON=./python3.12")


def test_the_first_screen_of_the_readme_is_two_commands() -> None:
    screen = (ROOT / "README.md").read_text("utf-8").splitlines()[:30]
    assert "make demo" in "\n".join(screen)
    assert "make test" in "\n".join(screen)
