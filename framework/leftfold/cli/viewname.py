"""Views as people name them."""

from __future__ import annotations

from typing import Any

from leftfold.app import App
from leftfold.cli.failures import unknown
from leftfold.view import View

__all__ = ["view_named"]


def view_named(app: App, name: str) -> View[Any, Any]:
    """The view that is meant.

    Raises:
        Usage: the App has none of that name.
    """
    view = next((v for v in app.views if v.name == name), None)
    if view is None:
        raise unknown(f"view in app {app.name} called", name, (v.name for v in app.views))
    return view
