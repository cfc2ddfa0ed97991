"""Archive and topics as one log, for whoever puts things together; without an archive the topics alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from leftfold.connection import ring
from leftfold.engine.archive import OpenArchive
from leftfold.engine.archived_log import ArchivedLog
from leftfold.engine.archived_reader import ArchivedReader
from leftfold.engine.bulk_log import OpenBulkLog
from leftfold.ports import LogReader

if TYPE_CHECKING:
    from leftfold.kafka.settings import KafkaSettings

__all__ = ["archive_dir", "open_archive", "open_bulk", "open_reader"]


def archive_dir(given: str | None = None, *, default: str = "") -> str:
    """Where the archive is: what is given, else LEFTFOLD_ARCHIVE_DIR, else the default; '' = there is none."""
    if given is not None:
        return given
    found: str = ring("leftfold.parquet.settings").ArchiveSettings().dir
    return found or default


def open_archive(archive: str) -> OpenArchive | None:
    """What opens the archive, None when there is none.

    Raises:
        ConfigurationError: `leftfold[archive]` is not installed.
    """
    return partial(ring("leftfold.parquet.archive").ParquetArchive, archive) if archive else None


def open_bulk(kafka: KafkaSettings, archive: str = "") -> OpenBulkLog:
    """What opens the log for folds of everything; it can be shipped to where tasks run."""
    topic, past = partial(ring("leftfold.kafka.bulk").KafkaBulkLog, kafka), open_archive(archive)
    return topic if past is None else partial(ArchivedLog, past, topic)


def open_reader(kafka: KafkaSettings, archive: str = "") -> Callable[[], LogReader]:
    """What opens the log for tails."""
    past = open_archive(archive)
    topic = partial(ring("leftfold.kafka.reader").KafkaLogReader, kafka)
    return topic if past is None else lambda: ArchivedReader(topic(), past)
