"""The process of the views that Spark computes: each again every so often, from the whole log."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from leftfold.cli.rebuilding import Rebuilding, cores_of, spark_settings
from leftfold.cli.trouble import Trouble
from leftfold.connection import ring
from leftfold.engine.rebuild import RebuildOptions
from leftfold.engine.refresh import Refresh
from leftfold.errors import ConfigurationError, InfrastructureError, LeftfoldError
from leftfold.logs import Report
from leftfold.query import TableView
from leftfold.view import View

__all__ = ["refresh"]

_KEEP = 60.0
"""Seconds for which readers in the middle of a scan still find the rows that were replaced."""


def refresh(views: Sequence[View[Any, Any]], every: float, stop: threading.Event, report: Report) -> None:
    """Computes views again every so many seconds until `stop` is set.

    Raises:
        ConfigurationError: the SQL of a view is not allowed or does not give its row; starting again would not help.
    """
    work = Rebuilding(None, None, RebuildOptions(keep=max(_KEEP, every), cores=cores_of("spark", None)))
    with ring("leftfold.spark.session").spark_session(spark_settings(None)) as session:
        work.use(session)
        threading.Thread(target=_cancel, args=(session, stop), name="cancel", daemon=True).start()
        for view in views:
            report(
                "refreshing", {"view": view.name, "every": f"{every:g} s", "kept": str(work.refreshed(_table(view)))}
            )
        trouble, seen = Trouble(report, stop), dict[str, object]()
        while not stop.is_set():
            began = time.monotonic()
            for view in views:
                _refresh(work, _table(view), seen, trouble, stop, report)
            stop.wait(max(0.0, every - (time.monotonic() - began)))


def _refresh(
    work: Rebuilding,
    view: TableView[Any, Any],
    seen: dict[str, object],
    trouble: Trouble,
    stop: threading.Event,
    report: Report,
) -> None:
    """One refresh, unless neither events nor reference files have changed since the last."""
    if stop.is_set():
        return
    try:
        files = {name: file.fingerprint() for name, file in view.references.items()}
        with work.opened(view, lambda progress: None) as rebuild:
            plan = rebuild.plan()
            if isinstance(rebuild, Refresh) and seen.get(view.name) == files and rebuild.stands_at(plan):
                return
            result = rebuild.run(plan)
        seen[view.name] = files
        trouble.told("")
        details = {"view": view.name, "generation": result.generation, "rows": result.rows, "events": result.events}
        report("refreshed", {**details, "seconds": round(sum(result.seconds.values()), 1)})
        if not result.swapped:
            report("view stopped", {"view": view.name, "why": str(result)})
    except ConfigurationError:
        raise
    except InfrastructureError as error:
        if not stop.is_set():
            trouble.met(error)
    except LeftfoldError as error:
        report("failed", {"view": view.name, "why": str(error)})


def _table(view: View[Any, Any]) -> TableView[Any, Any]:
    if not isinstance(view, TableView):
        raise ConfigurationError(f"view {view.name} is folded; run it with a tail")
    return view


def _cancel(session: Any, stop: threading.Event) -> None:
    """Ends what Spark is at when the process must end: a refresh under way leaves nothing behind."""
    stop.wait()
    session.sparkContext.cancelAllJobs()
