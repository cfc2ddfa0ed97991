"""Views in a store that none of the Apps at hand declares, as `status` and `doctor` tell of them."""

from __future__ import annotations

from collections.abc import Mapping

from leftfold.app import App
from leftfold.engine.bulk_store import BulkStore
from leftfold.engine.undeclared import undeclared

__all__ = ["look_for_others"]


def look_for_others(store: BulkStore, apps: Mapping[str, App], seconds: float) -> list[str]:
    """What to know of each view that nobody here declares and nobody works on, as far as so many seconds are enough.

    None where no App keeps views.
    """
    declared = {view.name for app in apps.values() for view in app.views}
    if not declared:
        return []
    called = ", ".join(app.name for app in apps.values())
    return [other.way_out(called) for other in undeclared(store, declared, seconds) if not other.tails]
