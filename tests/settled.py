"""What is committed in a topic: reading it, and waiting for it, since a commit returns before its markers."""

from __future__ import annotations

from contextlib import closing

from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.ports.bulk import BulkLog, OffsetRange, raw
from leftfold.ports.protocols import RawRecord
from tests.waiting import read_until, wait_until

__all__ = ["committed", "read_settled", "wait_settled"]


def wait_settled(kafka: KafkaSettings, topic: str) -> None:
    """Waits until every transaction on a topic has ended on all of its partitions."""
    with ClusterAdmin(kafka) as cluster, closing(KafkaBulkLog(kafka)) as log:
        wait_until(
            lambda: log.stable_ends([topic]) == cluster.ends([topic]), f"every transaction on {topic} to be over"
        )


def committed(kafka: KafkaSettings, topic: str, *, now: bool = False) -> list[RawRecord]:
    """Every committed record of a topic, partition by partition.

    Args:
        now: what is open is not waited for.
    """
    with closing(KafkaLogReader(kafka)) as reader:
        reader.seek(reader.starts([topic]))
        found = read_until(reader, (reader.stable_ends if now else reader.ends)([topic]), 1000)
    return sorted(found, key=lambda record: (record.partition, record.offset))


def read_settled(log: BulkLog, topic: str) -> list[RawRecord]:
    """Every committed record of a topic, partition by partition, from a log that is closed then."""
    with closing(log):
        ends = log.stable_ends([topic]).offsets.get(topic, {})
        parts = [OffsetRange(topic, partition, 0, end) for partition, end in sorted(ends.items())]
        return [raw(part, record) for part in parts for batch in log.read(part) for record in batch]
