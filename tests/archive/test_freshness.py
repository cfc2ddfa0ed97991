"""How many seconds a position is behind, wherever the next event lies: in the archive, in the topic, or nowhere."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from leftfold.errors import InfrastructureError, LogGap
from leftfold.model.position import Position
from leftfold.ports.bulk import OffsetRange
from leftfold.runtime.operations.cluster_state import ClusterState
from tests.archive.past import TOPIC, Past
from tests.domains.ledger import app

pytestmark = pytest.mark.servers

START = Position({TOPIC: dict.fromkeys(range(app.partitions), 0)})


def freshness(past: Past, archive: str) -> ClusterState:
    return ClusterState(past.kafka.bootstrap_servers, archive)


def events(past: Past) -> dict[int, list[tuple[int, int]]]:
    """Offset and time (ms) of every record, by partition."""
    with closing(past.log()) as log:
        return {
            partition: [
                (record.offset(), record.timestamp()[1])
                for records in log.read(OffsetRange(TOPIC, partition, 0, end))
                for record in records
            ]
            for partition, end in log.stable_ends([TOPIC]).offsets[TOPIC].items()
        }


def test_the_archive_has_the_time_of_offsets_that_the_topic_has_lost(past: Past) -> None:
    oldest = min(found[0][1] for found in events(past).values()) / 1000
    before = time.time()
    looking = freshness(past, past.folder)
    seconds = looking.seconds_behind(START)
    assert before - oldest <= seconds <= time.time() - oldest


def test_one_partition_that_is_behind_counts_and_no_other(past: Past) -> None:
    found = events(past)
    at = {partition: records[-1][0] + 1 for partition, records in found.items()}
    offset, appended = found[2][-1]
    before = time.time()
    looking = freshness(past, "")
    seconds = looking.seconds_behind(Position({TOPIC: {**at, 2: offset}}))
    assert before - appended / 1000 <= seconds <= time.time() - appended / 1000


def test_a_view_is_not_behind_by_the_marker_of_a_transaction(past: Past) -> None:
    at = Position({TOPIC: {partition: records[-1][0] + 1 for partition, records in events(past).items()}})
    with closing(past.topic()) as log:
        assert not at.covers(log.stable_ends([TOPIC])), "a marker must be left"
    looking = freshness(past, "")
    assert looking.seconds_behind(at) == 0.0


def test_without_an_archive_lost_offsets_are_an_error(past: Past) -> None:
    looking = freshness(past, "")
    with pytest.raises(
        LogGap, match=r"no longer holds offsets 0 to \d+, and no archive is configured; .* --archive DIR"
    ):
        looking.seconds_behind(START)


def test_an_archive_is_opened_only_for_what_the_topic_has_lost(past: Past, tmp_path: object) -> None:
    at = Position({TOPIC: {partition: records[-1][0] for partition, records in events(past).items()}})
    broken = f"{tmp_path}/none-such"
    looking = freshness(past, broken)
    assert looking.seconds_behind(at) > 0.0
    with pytest.raises(InfrastructureError, match="none-such"):
        looking.seconds_behind(START)
