"""Routing on Faust: events become inputs of processes. Faust's habits stay in here, and no guarantee rests on it."""

from __future__ import annotations

from leftfold.faust.routing import route

__all__ = ["route"]
