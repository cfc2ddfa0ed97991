"""What is sent to executors can be imported there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from leftfold.errors import ConfigurationError
from leftfold.spark.core.session import packed


@pytest.mark.parametrize("marker", [["__init__.py"], []], ids=["package", "namespace"])
def test_a_package_is_imported_from_its_zip(tmp_path: Path, marker: list[str]) -> None:
    package, folder = tmp_path / "stall", tmp_path / "packed"
    (package / "inner").mkdir(parents=True)
    (package / "__pycache__").mkdir()
    folder.mkdir()
    for name in marker:
        (package / name).touch()
        (package / "inner" / name).touch()
    (package / "__pycache__" / "goods.pyc").write_bytes(b"stale")
    (package / "inner" / "goods.py").write_text("APPLES = 3\n")
    found = packed(package, folder)
    code = "import stall.inner.goods as goods; print(goods.APPLES, goods.__file__)"
    command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(found)!r}); {code}"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout
    assert told.startswith(f"3 {found}")


def test_modules_and_archives_go_as_they_are(tmp_path: Path) -> None:
    for name in ("shop.py", "shop.zip"):
        (tmp_path / name).touch()
        assert packed(tmp_path / name, tmp_path) == tmp_path / name


@pytest.mark.parametrize("name", ["absent", "no-package", "notes.txt"])
def test_what_python_cannot_import_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "no-package").mkdir()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigurationError, match=f"{name} is no package directory"):
        packed(tmp_path / name, tmp_path)
