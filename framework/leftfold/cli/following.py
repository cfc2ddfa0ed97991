"""The process of the tail: all views in one loop, made again whenever its servers fail it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from leftfold.cli.trouble import Trouble
from leftfold.engine.archive import OpenArchive
from leftfold.engine.archived_reader import ArchivedReader
from leftfold.engine.tail import Tail
from leftfold.errors import Fenced, InfrastructureError
from leftfold.kafka.reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.logs import Report
from leftfold.ports import LogReader
from leftfold.redis import RedisSettings, RedisViewStore, refuse_eviction
from leftfold.view import View
from leftfold.wholelog import open_archive

__all__ = ["follow"]


def follow(
    views: Sequence[View[Any, Any]],
    kafka: KafkaSettings,
    redis: RedisSettings,
    stop: threading.Event,
    report: Report,
    *,
    options: Mapping[str, Any],
    archive: str = "",
) -> None:
    """Keeps views at the end of the log until `stop` is set.

    Args:
        options: of the Tail. Its member's name must be the same after a restart, or the buckets of its own ghost would
            stand still until that is taken for dead.
        archive: where events are that the topic has lost; '' = nowhere.

    Raises:
        Fenced: this process must end and be started again.
        ConfigurationError: Redis evicts keys.
    """
    trouble, started = Trouble(report, stop), set[str]()
    while not stop.is_set():
        try:
            _follow(views, kafka, redis, stop, trouble, open_archive(archive), {**options, "started": started})
        except Fenced:
            raise
        except InfrastructureError as error:
            trouble.met(error)


def _follow(
    views: Sequence[View[Any, Any]],
    kafka: KafkaSettings,
    redis: RedisSettings,
    stop: threading.Event,
    trouble: Trouble,
    past: OpenArchive | None,
    options: Mapping[str, Any],
) -> None:
    readers: list[KafkaLogReader] = []

    def open_log() -> LogReader:
        readers.append(KafkaLogReader(kafka))
        return readers[-1] if past is None else ArchivedReader(readers[-1], past)

    refuse_eviction(redis)
    store = RedisViewStore(redis)
    try:
        tail = Tail(views, open_log, store, report=trouble.report, **options)
        told = False
        while not stop.is_set():
            tail.step()
            if not told:
                trouble.report("following", {"views": ", ".join(view.name for view in views)})
                told = True
            trouble.told(next((reader.trouble for reader in readers if reader.trouble), ""))
        tail.close()
    finally:
        for reader in readers:
            reader.close()
        store.close()
