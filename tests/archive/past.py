"""The ledgers App with a past that only the archive has: archived, then trimmed, then continued."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from confluent_kafka.admin import AdminClient

from leftfold.client import Views
from leftfold.engine.archive.archived_log import ArchivedLog, ArchivedReader
from leftfold.engine.archive.retention import Trimming
from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions, Runner
from leftfold.engine.rebuild.tasks import run_locally
from leftfold.engine.views.projector import Projector
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.model import keys as names
from leftfold.model.view import View
from leftfold.parquet.archive_reader import ParquetArchive
from leftfold.parquet.archiver import Archiver
from leftfold.parquet.filesystem import ArchiveFileSystem
from leftfold.ports.bulk import OpenArchive, OpenBulkLog
from leftfold.ports.protocols import LogReader
from leftfold.redis import RedisBulkSink, RedisSettings, RedisViewStore
from tests.domains.ledger import app, histories, stranger
from tests.threads import Background, deciding, projecting, wait_live
from tests.waiting import WAIT_SECONDS, step_until, wait_until
from tests.worker.receipts import behind

__all__ = ["TOPIC", "Past"]

TOPIC = names.events("ledgers")
Work = TypeVar("Work", bound=Rebuild)


@dataclass
class Past:
    """The App's servers and its archive."""

    kafka: KafkaSettings
    redis: RedisSettings
    folder: str

    def __post_init__(self) -> None:
        self.store = RedisViewStore(self.redis)
        self.views = Views(self.store)
        self.archive: OpenArchive = partial(ParquetArchive, self.folder)
        self.topic: Callable[[], KafkaBulkLog] = partial(KafkaBulkLog, self.kafka)
        self.log: OpenBulkLog = partial(ArchivedLog, self.archive, self.topic)

    def reader(self) -> LogReader:
        """Archive and topic."""
        return ArchivedReader(KafkaLogReader(self.kafka), self.archive)

    def bare_reader(self) -> LogReader:
        """The topic alone."""
        return KafkaLogReader(self.kafka)

    def make(self) -> None:
        """Three histories; two are archived and most of them trimmed away; `noon` (in ms) lies between those."""
        ensure(app, self.kafka)
        with self.working(self.reader), closing(KafkaClient(app.name, self.kafka)) as client:
            wait_live(self.store, app.views)
            self.send(client, 7)
            self.noon = time.time_ns() // 1_000_000 + 1
            self.send(client, 6)
            self.trim(keep=12)  # fewer than a history writes into a partition in one transaction
            self.send(client, 8)

    def trim(self, *, keep: int = 0) -> None:
        """Archives all there is and takes it out of the topic; of partition n its last `keep` times n offsets stay."""
        with ClusterAdmin(self.kafka) as cluster, closing(self.topic()) as log:
            Archiver(ArchiveFileSystem(self.folder), TOPIC, cluster.identity(TOPIC), log).run()
            ends = self.archive().ends(TOPIC)
            trimming = Trimming(TOPIC, self.archive, log, cluster.delete_records)
            trimming.run(trimming.plan({p: end - keep * p for p, end in ends.items()}))

    def send(self, client: KafkaClient, seed: int) -> None:
        """A random history, waited for in every view."""
        answers = client.send_many(list(histories(stranger(seed), 300)), timeout=WAIT_SECONDS)
        after = behind(answers)
        for view in app.views:
            self.views[view].wait_reached(after, timeout=WAIT_SECONDS)

    def working(self, reader: Callable[[], LogReader]) -> Background:
        """A worker and a projector at work while the block runs."""
        supplier = KafkaClientSupplier(self.kafka, archive=self.archive)
        return Background(deciding(app, "ledgers", supplier), projecting(app.views, reader, self.store))

    def caught_up(self, redis: RedisSettings, reader: Callable[[], LogReader]) -> dict[str, dict[Any, Any]]:
        """The rows of a projector that begins with nothing, in another database, once it is at the end."""
        store = RedisViewStore(redis)
        projector = Projector(app.views, reader, store)
        try:
            step_until(projector.step, projector.caught_up, "the projector to catch up")
            return {view.name: dict(Views(store)[view].items()) for view in app.views}
        finally:
            projector.close()
            store.close()

    def rebuild(self, view: View[Any, Any], log: OpenBulkLog, run: Runner = run_locally) -> Rebuild:
        return self.work(Rebuild, view, run, log=log, patience=0.2)

    def work(
        self,
        kind: type[Work],
        view: View[Any, Any],
        run: Runner = run_locally,
        *,
        log: OpenBulkLog | None = None,
        **reported: Any,
    ) -> Work:
        """A rebuild of some kind, which by default reads archive and topic."""
        return kind(
            view,
            self.store,
            open_log=log or self.log,
            open_reader=self.reader,
            open_sink=partial(RedisBulkSink, self.redis),
            options=RebuildOptions(**{"keep": 0, **reported}),
            run=run,
        )

    def rows(self) -> dict[str, dict[Any, Any]]:
        return {view.name: dict(self.views[view].items()) for view in app.views}

    def wipe_state(self) -> None:
        """Deletes the state topic and makes it again, empty."""
        topic, admin = names.state("ledgers", 1), AdminClient(self.kafka.librdkafka())
        admin.delete_topics([topic])[topic].result(WAIT_SECONDS)
        with ClusterAdmin(self.kafka) as cluster:
            wait_until(lambda: not cluster.partition_counts([topic]), f"{topic} to go")
        ensure(app, self.kafka)
