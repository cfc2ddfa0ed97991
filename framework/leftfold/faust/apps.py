"""An App of Faust without its habits: no web server, no leader topic, no logging of its own, committed records only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import faust
from aiokafka import errors
from mode.utils.queues import FlowControlEvent
from yarl import URL

from leftfold.engine.reason import reason_of
from leftfold.errors import InfrastructureError, LeftfoldError, refused
from leftfold.faust.transport import CommittedTransport

__all__ = ["Tableless", "faust_app", "start", "translated"]

_TICK_SECONDS = 0.1
_NOT_ALLOWED = (
    errors.AuthenticationFailedError,
    errors.ClusterAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.SaslAuthenticationFailed,
    errors.TopicAuthorizationFailedError,
    errors.TransactionalIdAuthorizationFailed,
)


class _Flow(FlowControlEvent):
    """Goes on once: Faust says so again when its tables are restored, and would forget the events that wait then."""

    def resume(self) -> None:
        """Lets events through."""
        if not self.is_active():
            super().resume()


def translated(error: BaseException, doing: str) -> LeftfoldError:
    """An error of Faust or aiokafka in our tree, with what was tried as the message's first words."""
    text = f"{doing}: {reason_of(error)}"
    return refused(text) if isinstance(error, _NOT_ALLOWED) else InfrastructureError(text)


class Tableless(faust.App):
    """An App without tables, which has nothing to keep in directories and makes none."""

    def _create_directories(self) -> None:
        pass


def faust_app(
    id_: str,
    dialect: Mapping[str, Any],
    kind: type[CommittedTransport] = CommittedTransport,
    made: type[faust.App] = faust.App,
    **other: Any,
) -> faust.App:
    """The App, with its transport.

    Args:
        dialect: how aiokafka reaches the brokers. kind: of its transport. made: of the App. other: settings that differ
            from ours.
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
    app = made(id_, **{**settings, **other})
    app.flow_control = _Flow()
    transport = kind(app.conf.broker_consumer, app)
    transport.dialect = dialect
    app.transport = transport
    return app


async def start(app: faust.App, stop: threading.Event, failure: asyncio.Future[None]) -> None:
    """Starts an App, which takes until it has its first partitions, `stop` is set or there is a failure.

    Raises:
        ConfigurationError: the brokers do not let it join its group. InfrastructureError: it crashed.
    """
    starting = asyncio.ensure_future(app.start())
    consumer: Any = app.consumer
    try:
        while not starting.done() and not failure.done() and not stop.is_set():
            await asyncio.wait([starting, failure], timeout=_TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if (refusal := consumer.refusal) is not None:
                raise translated(refusal, f"joining group {app.conf.id}")
        if starting.done():
            await starting
    finally:
        starting.cancel()


def _credentials(dialect: Mapping[str, Any]) -> Any:
    """What Faust's own producer logs in with: its consumers and our producers take the dialect as it is."""
    context = dialect.get("ssl_context")
    if dialect.get("sasl_mechanism"):
        return faust.SASLCredentials(
            username=dialect["sasl_plain_username"],
            password=dialect["sasl_plain_password"],
            mechanism=dialect["sasl_mechanism"],
            ssl_context=context,
        )
    return faust.SSLCredentials(context) if context is not None else None
