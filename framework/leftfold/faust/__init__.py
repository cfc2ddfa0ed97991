"""The Faust adapter: the router of process managers, and typed event streams for users' own agents."""

from __future__ import annotations

from leftfold.engine.streaming.external_rows import ExternalRows
from leftfold.faust.router import route
from leftfold.faust.streams import EventStreams, windows_of

__all__ = ["EventStreams", "ExternalRows", "route", "windows_of"]
