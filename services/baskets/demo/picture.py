"""A journey as a picture: the causes and effects of a command, as the console draws them, in an SVG file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from leftfold.engine.causation import Trace, TraceStep
from leftfold.http import console
from leftfold.http.console.html import tag
from leftfold.http.console.streams_page import trace_graph
from services.baskets.app import app

__all__ = ["CONSOLE", "write_picture"]

CONSOLE = "http://127.0.0.1:8090"
"""Where `leftfold console` listens."""


def write_picture(path: Path, steps: Iterable[TraceStep], id_: str) -> None:
    """Writes the causation graph of a command; its nodes are links to the pages of the console."""
    visitor = console.Visitor(console.Console({"services.baskets.app:app": app}, {}, None), prefix=CONSOLE)
    opening, _, rest = trace_graph(visitor, Trace(steps), id_).partition(">")
    style = tag("style", Path(console.__file__).with_name("style.css").read_text("utf-8"))
    path.write_text(f'{opening} xmlns="http://www.w3.org/2000/svg">{style}{rest}\n', "utf-8")
