"""`connect(app)`: the client and the views of an App that runs on servers; and its log with the archive."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from leftfold.client import Views
from leftfold.engine.archive.archived_log import ArchivedLog, ArchivedReader
from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.model.app import App
from leftfold.ports.bulk import OpenArchive, OpenBulkLog
from leftfold.ports.protocols import LogReader
from leftfold.safety import veiled

if TYPE_CHECKING:
    from leftfold.client.commands import Client
    from leftfold.kafka.client.kafka_client import KafkaClient
    from leftfold.kafka.settings import KafkaSettings
    from leftfold.redis import RedisSettings, RedisViewStore

__all__ = [
    "Connection",
    "archive_dir",
    "connect",
    "kafka_settings",
    "open_archive",
    "open_bulk",
    "open_reader",
    "redis_settings",
    "ring",
]


S = TypeVar("S")
_EXTRAS = {"kafka": "kafka", "redis": "redis", "spark": "spark", "local": "embedded", "parquet": "archive"}


class Connection:
    """An App on servers, for any number of threads; use it in a `with`, or close it.

    Each side is opened when it is first used, so a service that only queries needs no broker, and one that only sends
    needs no Redis.
    """

    def __init__(self, app: App, kafka: str | KafkaSettings | None, redis: str | RedisSettings | None) -> None:
        self.app, self._kafka, self._redis = app, kafka, redis
        self._lock, self._closed = threading.Lock(), False
        self._client: KafkaClient | None = None
        self._store: RedisViewStore | None = None
        self._views: Views | None = None

    @property
    def client(self) -> Client:
        """Sends commands.

        Raises:
            ConfigurationError: nobody says where Kafka is, or `leftfold[kafka]` is not installed.
            InfrastructureError: no broker answers, or the App has never run there.
        """
        with self._lock:
            self._check_open()
            if self._client is None:
                made = ring("leftfold.kafka.client.kafka_client").KafkaClient
                self._client = made(self.app.name, kafka_settings(self._kafka))
            return self._client

    @property
    def views(self) -> Views:
        """Reads views: `views[basket_summary].get("b-1")`.

        Raises:
            ConfigurationError: nobody says where Redis is, or `leftfold[redis]` is not installed.
        """
        with self._lock:
            self._check_open()
            if self._views is None:
                self._store = ring("leftfold.redis").RedisViewStore(redis_settings(self._redis))
                self._views = Views(self._store)
            return self._views

    def close(self) -> None:
        """Lets go of both sides; commands under way are waited for, five seconds at most."""
        with self._lock:
            self._closed = True
            if self._client is not None:
                self._client.close()
            if self._store is not None:
                self._store.close()
            self._client = self._store = self._views = None

    def _check_open(self) -> None:
        if self._closed:
            raise InfrastructureError(f"this connection of app {self.app.name} is closed; connect again")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def connect(
    app: App, /, *, kafka: str | KafkaSettings | None = None, redis: str | RedisSettings | None = None
) -> Connection:
    """An App where it runs: `with connect(app) as lf: lf.client.send(...); lf.views[view].get(...)`.

    Args:
        kafka: `host:port` or settings; absent = the environment, then what `leftfold up` announced.
        redis: a URL or settings; absent = the same.
    """
    return Connection(app, kafka, redis)


def kafka_settings(given: str | KafkaSettings | None = None) -> KafkaSettings:
    """Where Kafka is and how to log in, from what is given, the environment, or what `leftfold up` announced.

    Raises:
        ConfigurationError: nobody says, or what they say is wrong.
    """
    settings: type[KafkaSettings] = ring("leftfold.kafka.settings").KafkaSettings
    if given is not None:
        return _settings(settings, "bootstrap_servers", given)
    announced: Mapping[str, str] | None = ring("leftfold.runtime.discovery").kafka_fields(Path.cwd())
    found = _settings(settings, "bootstrap_servers", announced)
    return found if announced is None else found.model_copy(update={"advice": "start it: leftfold up"})


def redis_settings(given: str | RedisSettings | None = None) -> RedisSettings:
    """Where Redis is, in the same manner.

    Raises:
        ConfigurationError: nobody says, or what they say is wrong.
    """
    settings: type[RedisSettings] = ring("leftfold.redis.connection.settings").RedisSettings
    told: str | RedisSettings | Mapping[str, str] | None = given
    if given is None:
        told = ring("leftfold.runtime.discovery").redis_fields(Path.cwd())
    return _settings(settings, "url", told)


def ring(module: str) -> Any:
    """A module that needs a vendor, imported when it is first needed: `import leftfold` costs pydantic only.

    Raises:
        ConfigurationError: its extra is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(module.split(".")[1])
        if extra is None or (error.name or "").startswith("leftfold"):
            raise
        raise ConfigurationError(
            f"{module} needs {error.name}, which is not installed; install it: pip install 'leftfold[{extra}]'"
        ) from error


def _settings(settings: type[S], field: str, given: str | Mapping[str, str] | S | None) -> S:
    if isinstance(given, settings):
        return given
    try:
        return settings(**(given if isinstance(given, Mapping) else {field: given} if given is not None else {}))
    except ValueError as error:
        details = error.errors(include_url=False, include_input=False) if hasattr(error, "errors") else ()
        found = "; ".join(f"{'.'.join(map(str, d['loc'])) or field}: {d['msg']}" for d in details)
        raise ConfigurationError(
            f"the settings of {settings.__module__} are wrong: {veiled(found or str(error))}"
        ) from error


def archive_dir(given: str | None = None, *, default: str = "") -> str:
    """Where the archive is: what is given, else LEFTFOLD_ARCHIVE_DIR, else the default; '' = there is none."""
    if given is not None:
        return given
    found: str = ring("leftfold.parquet.filesystem").ArchiveSettings().dir
    return found or default


def open_archive(archive: str) -> OpenArchive | None:
    """What opens the archive, None when there is none.

    Raises:
        ConfigurationError: `leftfold[archive]` is not installed.
    """
    return partial(ring("leftfold.parquet.archive_reader").ParquetArchive, archive) if archive else None


def open_bulk(kafka: KafkaSettings, archive: str = "") -> OpenBulkLog:
    """What opens the log for folds of everything; it can be shipped to where tasks run."""
    topic, past = partial(ring("leftfold.kafka.bulk_log").KafkaBulkLog, kafka), open_archive(archive)
    return topic if past is None else partial(ArchivedLog, past, topic)


def open_reader(kafka: KafkaSettings, archive: str = "") -> Callable[[], LogReader]:
    """What opens the log for projectors."""
    past = open_archive(archive)
    topic = partial(ring("leftfold.kafka.log_reader").KafkaLogReader, kafka)
    return topic if past is None else lambda: ArchivedReader(topic(), past)
