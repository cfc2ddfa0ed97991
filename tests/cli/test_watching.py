"""What `leftfold dev` notices."""

from __future__ import annotations

import os
from pathlib import Path

from leftfold.cli.run.dev import changes, scan


def test_source_files_are_seen_and_the_rest_is_not(tmp_path: Path) -> None:
    for name in ("shop/a.py", "pyproject.toml", "shop/b.txt", ".venv/c.py", "env/d.py", "tests/e.py", "shop/.hid/f.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("", "utf-8")
    (tmp_path / "env" / "pyvenv.cfg").write_text("", "utf-8")
    assert sorted(scan(tmp_path)) == ["pyproject.toml", "shop/a.py"]


def test_new_gone_and_changed_files_are_changes(tmp_path: Path) -> None:
    kept, gone, changed = (tmp_path / name for name in ("kept.py", "gone.py", "changed.py"))
    for file in (kept, gone, changed):
        file.write_text("", "utf-8")
    before = scan(tmp_path)
    gone.unlink()
    os.utime(changed, ns=(1, 1))
    (tmp_path / "new.py").write_text("", "utf-8")
    assert changes(before, scan(tmp_path)) == ["changed.py", "gone.py", "new.py"]
    assert changes(before, before) == []
