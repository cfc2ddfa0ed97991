"""What another user has put into the working directory or above it is neither run nor believed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from leftfold.cli.main import run
from leftfold.errors import ConfigurationError
from leftfold.runtime.discovery import Environment, announced
from leftfold.runtime.project import find_project, load_app

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")

STRANGER = 12345


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of our own, below a project whose App says that it was run."""
    (tmp_path / "pyproject.toml").write_text('[tool.leftfold]\napp = "lured:app"\n', "utf-8")
    (tmp_path / "lured.py").write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n", "utf-8")
    mine = tmp_path / "a" / "mine"
    mine.mkdir(parents=True)
    monkeypatch.chdir(mine)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "lured", raising=False)
    return mine


@pytest.mark.parametrize("where", ["above", "here"])
@pytest.mark.parametrize("what", ["pyproject.toml", "."])
def test_a_project_of_another_user_is_not_run(
    place: Path, what: str, where: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    above = place.parents[1]
    os.chown(above / what, STRANGER, -1)
    if where == "here":
        monkeypatch.chdir(above)
    for words in (["status"], ["check"], ["up"], ["dev"]):
        assert run(words) == ConfigurationError.exit_code, words
        told = capfd.readouterr().err
        assert f"{above / 'pyproject.toml'} belongs to another user" in told
        assert f"LEFTFOLD_TRUST={above}" in told
        assert "--app" in told
    assert not (above / "ran").exists()
    assert find_project().root == (place if where == "above" else above)
    assert not find_project().written
    assert load_app("tests.cli.tower:app").name == "tower", "an App of one's own can be named"


def test_a_project_of_another_user_is_run_where_it_is_trusted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    above = place.parents[1]
    os.chown(above / "pyproject.toml", STRANGER, -1)
    monkeypatch.setenv("LEFTFOLD_TRUST", f"/elsewhere{os.pathsep}{above}")
    assert find_project().apps == ("lured:app",)
    monkeypatch.chdir(above)
    assert find_project().apps == ("lured:app",)


@pytest.mark.parametrize("where", ["above", "here"])
def test_ones_own_project_is_run(place: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    above = place.parents[1]
    if where == "here":
        monkeypatch.chdir(above)
    with pytest.raises(ConfigurationError, match="lured has no App"):
        load_app()
    assert (above / "ran").exists()


def test_servers_that_another_user_announces_are_not_believed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = place.parents[1] / ".leftfold" / "servers.json"
    file.parent.mkdir()
    file.write_text('{"kafka": "trap:1"}', "utf-8")
    assert announced(place, Environment()).kafka == "trap:1"
    os.chown(file, STRANGER, -1)
    assert announced(place, Environment()).kafka == ""
    assert announced(file.parents[1], Environment()).kafka == ""
    monkeypatch.setenv("LEFTFOLD_TRUST", str(file.parents[1]))
    assert announced(place, Environment()).kafka == "trap:1"
