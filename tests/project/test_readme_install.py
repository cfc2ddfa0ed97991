"""The README's section about installing, typed as it stands on a clone, into an environment of its own."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.faults
def test_the_readmes_installation_works_as_it_is_typed(tmp_path: Path) -> None:
    clone = tmp_path / "leftfold"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    section = (clone / "README.md").read_text("utf-8").partition("## Your own service")[2]
    lines = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)[0].splitlines()
    assert lines[-1].startswith("leftfold dev "), "all but the last line end by themselves"
    script = "\n".join(["set -e", *lines[:-1]])
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    subprocess.run(["bash", "-c", script], cwd=clone, env=environment, check=True)
    assert (tmp_path / "shop" / "pyproject.toml").is_file()
