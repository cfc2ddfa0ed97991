"""Routing on Faust, and Faust for users: typed events in agents of their own. Faust's habits stay in here."""

from __future__ import annotations

from leftfold.engine.streaming.external_rows import ExternalRows
from leftfold.faust.router import route
from leftfold.faust.streams import EventStreams, windows_of

__all__ = ["EventStreams", "ExternalRows", "route", "windows_of"]
