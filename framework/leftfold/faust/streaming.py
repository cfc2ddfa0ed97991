"""Makes what an App says of a stream: its App of Faust, the rows of its views, and the agents of the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from leftfold.app import App
from leftfold.engine.generations import topics_of
from leftfold.engine.streamed_rows import StreamedRows
from leftfold.errors import ConfigurationError
from leftfold.faust.streams import EventStreams, Report
from leftfold.ports import ViewStore
from leftfold.streaming import Streaming

__all__ = ["streams_of"]


def streams_of(
    app: App,
    stream: Streaming,
    dialect: Mapping[str, Any],
    store: ViewStore | None,
    count: Callable[[str], int],
    *,
    anew: bool = False,
    report: Report = lambda what, details: None,
) -> EventStreams:
    """The stream, ready to run.

    Args:
        dialect: how aiokafka reaches the brokers. store: of its views, where it has any. count: the partition count of
            a topic.
        anew: into a new generation of its views, beside whoever keeps them.

    Raises:
        ConfigurationError: an agent goes through events that the stream does not name.
        InfrastructureError: another process keeps a view.
    """
    rows = [StreamedRows(view, store, topics_of(view, count), anew=anew) for view in stream.views if store is not None]
    streams = EventStreams(app, stream.name, dialect, rows=rows, report=report, **stream.settings)
    try:
        stream.work(streams, *rows)
        if others := sorted(streams.categories.difference(stream.categories)):
            raise ConfigurationError(
                f"stream {stream.name}: an agent goes through events of {', '.join(others)}; add them to its events="
            )
    except BaseException:
        streams.close()
        raise
    return streams
