"""Faust Apps over the transport for committed records, without web server and logging: made, and started."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import faust
from mode.utils.queues import FlowControlEvent
from yarl import URL

from leftfold.errors import ConfigurationError
from leftfold.faust.transport import CommittedTransport, translated

__all__ = ["faust_app", "start"]

_TICK_SECONDS = 0.1


class _Flow(FlowControlEvent):
    """Faust's flow control, which resumes only once.

    Faust resumes again when its tables are restored, and would drop the waiting events.
    """

    def resume(self) -> None:
        """Resumes the flow of events."""
        if not self.is_active():
            super().resume()


class _QuietApp(faust.App):
    """Makes directories only for tables that are kept in files, and keeps the first reason of a crash.

    The parts of Faust that fail because another one has crashed would replace its reason with theirs.
    """

    def _crash(self, reason: BaseException) -> None:
        super()._crash(self.crash_reason or reason)

    def _create_directories(self) -> None:
        tables: Any = self.tables.values()
        if any((table._store or self.conf.store).scheme != "memory" for table in tables):  # noqa: SLF001
            super()._create_directories()


def faust_app(id_: str, dialect: Mapping[str, Any], **other: Any) -> faust.App:
    """Creates a Faust App with its transport.

    Args:
        dialect: aiokafka's connection settings.
        other: Faust settings that differ from the defaults here.

    Raises:
        ConfigurationError: `producer_threaded` is set.
    """
    settings: dict[str, Any] = {
        "broker": [URL(f"kafka://{server}") for server in str(dialect["bootstrap_servers"]).split(",")],
        "broker_credentials": _credentials(dialect),
        "consumer_auto_offset_reset": "earliest",
        "broker_max_poll_records": 2000,
        "broker_session_timeout": 6,
        "broker_heartbeat_interval": 1,
        "broker_commit_interval": 1.0,
        "stream_wait_empty": False,
        "topic_allow_declare": False,
        "topic_disable_leader": True,
        "web_enabled": False,
        "store": "memory://",
        "logging_config": None,
    }
    app = _QuietApp(id_, **{**settings, **other})
    if app.conf.producer_threaded:
        raise ConfigurationError(
            f"{id_}: with producer_threaded Faust does not say which changes of tables the brokers have; leave it out"
        )
    app.flow_control = _Flow()
    transport = CommittedTransport(app.conf.broker_consumer, app)
    transport.dialect = dialect
    app.transport = transport
    return app


async def start(app: faust.App, stop: threading.Event, failure: asyncio.Future[None]) -> None:
    """Starts a Faust App; returns when it has its first partitions, `stop` is set or `failure` is done.

    Raises:
        ConfigurationError: the brokers refuse to let it join its group. InfrastructureError: it crashed.
    """
    starting = asyncio.ensure_future(app.start())
    consumer: Any = app.consumer
    try:
        while not starting.done() and not failure.done() and not stop.is_set():
            await asyncio.wait([starting, failure], timeout=_TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if (refusal := consumer._thread.refusal) is not None:  # noqa: SLF001  # a CommittedThread
                raise translated(refusal, f"joining group {app.conf.id}")
        if starting.done():
            await starting
    finally:
        starting.cancel()


def _credentials(dialect: Mapping[str, Any]) -> Any:
    """The login of Faust's own producer; consumers and our producers use the connection settings directly."""
    context = dialect.get("ssl_context")
    if dialect.get("sasl_mechanism"):
        return faust.SASLCredentials(
            username=dialect["sasl_plain_username"],
            password=dialect["sasl_plain_password"],
            mechanism=dialect["sasl_mechanism"],
            ssl_context=context,
        )
    return faust.SSLCredentials(context) if context is not None else None
