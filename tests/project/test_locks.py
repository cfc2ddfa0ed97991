"""Each App of the application is as its committed lock says: what changed since has been looked at."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from leftfold import App
from leftfold.compatibility import Lock, compare, lock_of
from leftfold.runtime.project import Project, find_project

ROOT = Path(__file__).parents[2]
SERVICES = sorted(path.parent.name for path in ROOT.glob("services/*/app.py"))


@pytest.mark.parametrize("service", SERVICES)
def test_what_is_stored_and_folded_is_as_its_lock_says(service: str) -> None:
    module = f"services.{service}.app"
    app: App = importlib.import_module(module).app
    lock = find_project(ROOT).lock_of(app, f"{module}:app")
    findings = compare(Lock.from_json(lock.read_text("utf-8")), lock_of(app))
    assert [str(finding) for finding in findings] == [], f"leftfold check --write --app {module}:app"


def test_apps_that_no_project_names_have_locks_of_their_own_where_there_are_several() -> None:
    """One file for both would be taken for the other's, and written over it."""
    project, app = Project(ROOT), importlib.import_module(f"services.{SERVICES[0]}.app").app
    assert project.lock_of(app, "a:app") == project.lock
    assert project.lock_of(app, "a:app", is_alone=False) == ROOT / "locks" / f"{app.name}.lock"
