"""A rebuild's progress on a terminal: bar, rate and the time it still takes. Elsewhere nothing is shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from leftfold.engine.rebuild_progress import Progress

__all__ = ["shown"]


@contextmanager
def shown(what: str) -> Iterator[Callable[[Progress], None]]:
    """A report that draws on standard error while the block runs."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[figures]}"),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, figures="")

        def report(progress: Progress) -> None:
            bar.update(
                task,
                description=f"{what}: {progress.phase}",
                total=progress.total or None,
                completed=progress.done,
                figures=_figures(progress),
            )

        yield report


def _figures(progress: Progress) -> str:
    if not progress.total:
        return f"{progress.seconds:.0f} s" if progress.seconds >= 1 else ""
    rate = f"{progress.done:,}/{progress.total:,}  {progress.rate:,.0f}/s"
    return rate if progress.eta is None else f"{rate}  {progress.eta:.0f} s left"
