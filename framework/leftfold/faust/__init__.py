"""The Faust adapter: typed event streams for users' own agents, tables and windows."""

from __future__ import annotations

from leftfold.engine.streaming.external_rows import ExternalRows
from leftfold.faust.streams import EventStreams, windows_of

__all__ = ["EventStreams", "ExternalRows", "windows_of"]
