"""Services meet in commands and events only: import-linter says so, and notices a module that looks further."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRACT = "A service knows no more of another than its commands"
LINT = Path(sys.executable).with_name("lint-imports")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the application, with the rules of imports that concern it alone."""
    for name in ("events", "projections", "services"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    rules = (ROOT / "pyproject.toml").read_text("utf-8")
    (contract,) = re.findall(rf'(\[\[tool\.importlinter\.contracts\]\]\nname = "{CONTRACT}"\n(?:.+\n?)+)', rules)
    (tmp_path / "pyproject.toml").write_text(f'[tool.importlinter]\nroot_packages = ["services"]\n{contract}', "utf-8")
    return tmp_path


def lint(tree: Path) -> tuple[int, str]:
    """What import-linter says."""
    done = subprocess.run(
        [LINT, "--no-logo", "--no-cache"],
        cwd=tree,
        env={"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_services_import_no_more_of_each_other_than_commands(tree: Path) -> None:
    code, reported = lint(tree)
    assert code == 0, reported
    assert f"{CONTRACT} KEPT" in reported


@pytest.mark.parametrize(
    ("importer", "line"),
    [
        ("services/checkout/process.py", "from services.payments.domain import MOST"),
        ("services/checkout/process.py", "from services.baskets.settling import reopen"),
        ("services/replenishment/process.py", "from services.checkout.process import PATIENCE"),
        ("services/baskets/demo/journeys.py", "from services.inventory.app import app"),
    ],
)
def test_a_module_that_looks_into_another_service_is_named(tree: Path, importer: str, line: str) -> None:
    file = tree / importer
    file.write_text(file.read_text("utf-8").replace("\n\n__all__", f"\n{line}\n\n__all__", 1), "utf-8")
    code, reported = lint(tree)
    assert code == 1
    assert f"{CONTRACT} BROKEN" in reported
    assert importer.removesuffix(".py").replace("/", ".") in reported
