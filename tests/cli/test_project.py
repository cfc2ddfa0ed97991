"""Finding the App: where it is said, and what is said when it is not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from leftfold import ConfigurationError
from leftfold.runtime.project import find_project, load_app

APP = "from leftfold import App\napp = App('shop')\nother = 3\n"


def test_the_nearest_pyproject_with_leftfold_in_it_is_the_project(place: Path) -> None:
    (place / "pyproject.toml").write_text('[tool.leftfold]\napp = "shop:app"\n', "utf-8")
    inner = place / "a" / "b"
    inner.mkdir(parents=True)
    (place / "a" / "pyproject.toml").write_text("[project]\n", "utf-8")
    project = find_project(inner)
    assert (project.root, project.app) == (place, "shop:app")
    assert project.data == place / ".leftfold"


def test_a_project_found_upwards_lends_its_directory_to_imports(
    place: Path, module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module(APP)
    (place / "pyproject.toml").write_text(f'[tool.leftfold]\napp = "{name}:app"\n', "utf-8")
    (place / "inner").mkdir()
    monkeypatch.chdir(place / "inner")
    assert load_app().name == "shop"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "which App? say --app package.module:app, set LEFTFOLD_APP, or write into pyproject.toml"),
        ("shop", "must be module:name"),
        ("nothing.here:app", "there is no module nothing in"),
        ("{name}:ap", "has no App 'ap'; it has app"),
        ("{name}:other", "has no App 'other'; it has app"),
    ],
)
def test_a_wrong_app_is_explained(place: Path, module: Callable[[str], str], spec: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_app(spec.format(name=module(APP)))
    assert message in str(caught.value)
    assert caught.value.exit_code == 78


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import nothing_like_it\n", "ModuleNotFoundError: No module named 'nothing_like_it' ({file}:1)"),
        ("x = (\n", "'(' was never closed ({file}:1)"),
        ("\n1 / 0\n", "ZeroDivisionError: division by zero ({file}:2)"),
        ("from leftfold import App\napp = App('Shop!')\n", "app 'Shop!': a name is lower case letters"),
    ],
    ids=["its import", "its syntax", "its own error", "its definitions"],
)
def test_a_module_that_cannot_be_imported_says_where_and_why(
    place: Path, module: Callable[[str], str], source: str, message: str
) -> None:
    name = module(source)
    with pytest.raises(ConfigurationError) as caught:
        load_app(f"{name}:app")
    assert message.format(file=place / f"{name}.py") in str(caught.value)


def test_a_broken_pyproject_is_named(place: Path) -> None:
    (place / "pyproject.toml").write_text("[tool", "utf-8")
    with pytest.raises(ConfigurationError, match="pyproject.toml cannot be read"):
        find_project()
