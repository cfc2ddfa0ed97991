"""The project that `leftfold new` writes: `template/`, or `empty/`, with its words filled in."""

from __future__ import annotations

from leftfold.scaffold.project import write_project

__all__ = ["write_project"]
