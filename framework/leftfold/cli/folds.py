"""Which code folds each view of an App."""

from __future__ import annotations

from leftfold.app import App
from leftfold.errors import ConfigurationError
from leftfold.lockfile import lock_of

__all__ = ["folds_of"]


def folds_of(app: App) -> dict[str, str]:
    """A hash of each view's fold by its name; nothing where the source cannot be read."""
    try:
        return {name: fold.fold for name, fold in lock_of(app).views.items()}
    except ConfigurationError:
        return {}
