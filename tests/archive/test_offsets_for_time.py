"""Where the log stood at a moment, and how far behind it a position is: a trim moves neither."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from leftfold.engine.log_gaps import offsets_for_time
from leftfold.engine.rebuild.rebuilder import Rebuild
from leftfold.engine.views.decoding import EventDecoder
from leftfold.errors import InfrastructureError, LogGap
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.model.position import Position
from leftfold.parquet import archive_reader as reading
from leftfold.parquet.archive_reader import ParquetArchive
from leftfold.parquet.filesystem import ArchiveFileSystem
from leftfold.parquet.manifest import OffsetSpan
from leftfold.ports.protocols import RawRecord
from leftfold.runtime.as_of import place_meant
from leftfold.runtime.operations.cluster_state import ClusterState
from leftfold.testing import fold
from tests.archive.past import TOPIC, Past
from tests.archive.topics import BEGUN, DAY, MakeTopic, Topic, decision
from tests.domains.ledger import app, by_owner, summary
from tests.settled import read_settled

pytestmark = pytest.mark.servers
HOUR = DAY // 24
TRIMS: tuple[dict[int, int], ...] = ({}, {0: 10, 1: 2}, {0: 20, 1: 21}, {0: 24, 1: 24})
"""Of nothing, some, much and all."""


@pytest.fixture
def days(make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch) -> Topic:
    """Six days in two partitions, archived in small files of small groups.

    Partition 1 begins half an hour later; in each a clock once goes back by a day, and a decision begins before
    midnight and ends after it. There are no transactions, since brokers date the markers of those themselves.
    """
    monkeypatch.setattr("leftfold.parquet.file_writer._GROUP_ROWS", 2)
    topic = make_topic()
    producer = Producer(topic.kafka.librdkafka())
    for number in range(2):
        put = partial(topic.produce, producer, partition=number)
        for day in range(6):
            at = BEGUN + day * DAY + number * HOUR // 2
            put(decision(b"a%d" % day), at=at)
            put(decision(b"b%d" % day, b"c%d" % day), at=at + HOUR)
        put(decision(b"back"), at=BEGUN + 4 * DAY + 5)
        first, second = decision(b"before", b"after")
        put([first], at=BEGUN + 6 * DAY - 1)
        put([second], at=BEGUN + 6 * DAY + 1)
        put(decision(b"last", b"of", b"all"), at=BEGUN + 6 * DAY + HOUR)
    topic.archive(most=4)
    return topic


def moments(records: Sequence[RawRecord]) -> list[int]:
    """Every time at which something may change, and the ones beside it."""
    return sorted({record.time + beside for record in records for beside in (-1, 0, 1)} | {0, BEGUN + 1000 * DAY})


def records_before(records: Sequence[RawRecord], moment: int) -> dict[int, int]:
    """Per partition how many records lie in front of the first one that is not older."""
    found: dict[int, int] = {}
    done: set[int] = set()
    for record in records:
        done |= {record.partition} if record.time >= moment else set()
        found[record.partition] = found.get(record.partition, 0) + (record.partition not in done)
    return found


def covered(records: Sequence[RawRecord], place: Position) -> dict[int, int]:
    """Per partition how many records lie before a place."""
    found = dict.fromkeys({record.partition for record in records}, 0)
    for record in records:
        found[record.partition] += record.offset < place.next_offset(record.topic, record.partition)
    return found


def test_a_trim_moves_no_moment(days: Topic) -> None:
    whole = days.records()
    assert len(whole) == 48
    for trim in TRIMS:
        days.trim(trim)
        for moment in moments(whole):
            place = offsets_for_time(days.cluster, days.name, moment, days.opened)
            assert covered(whole, place) == records_before(whole, moment), (trim, moment)


def test_the_log_is_not_read_to_find_a_moment(days: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    days.trim({0: 24, 1: 24})
    files: list[str] = []

    real = reading.opened

    def opened(place: ArchiveFileSystem, folder: str, span: OffsetSpan) -> Any:
        files.append(span.path)
        return real(place, folder, span)

    monkeypatch.setattr(reading, "opened", opened)
    moment = BEGUN + 3 * DAY + HOUR
    offsets_for_time(days.cluster, days.name, moment, days.opened)
    assert {path[:14] for path in files} == {"day=2024-10-06", "day=2024-10-07"}, "the moment's day and the one before"


def test_without_an_archive_a_moment_before_what_is_left_is_refused(days: Topic) -> None:
    whole = days.records()
    days.trim({0: 9, 1: 9})
    alone = days.cluster.starts_at(days.name, BEGUN + DAY)
    assert covered(whole, alone) == {0: 9, 1: 9}, "the twin: the topic alone takes all trimmed records for older"
    assert records_before(whole, BEGUN + DAY) == {0: 3, 1: 3}
    gone = rf"gap in the log: {days.name}\[0\] no longer holds offsets 0 to 8, and no archive is configured"
    for moment in (0, BEGUN, BEGUN + DAY, BEGUN + 3 * DAY):
        with pytest.raises(InfrastructureError, match=gone):
            offsets_for_time(days.cluster, days.name, moment)
    place = offsets_for_time(days.cluster, days.name, BEGUN + 3 * DAY + HOUR)
    assert covered(whole, place) == records_before(whole, BEGUN + 3 * DAY + HOUR)


def test_an_archive_that_ends_too_early_answers_only_what_it_knows(days: Topic) -> None:
    whole = days.records()
    ends = days.opened().ends(days.name)
    producer = Producer(days.kafka.librdkafka())
    days.produce(producer, decision(b"e", b"f"), at=BEGUN + 8 * DAY)
    days.trim({0: ends[0] + 1})
    known = BEGUN + 2 * DAY
    assert covered(whole, offsets_for_time(days.cluster, days.name, known, days.opened)) == records_before(whole, known)
    lost = rf"no longer holds offsets {ends[0]} to {ends[0]}, and the archive .* does not hold them"
    with pytest.raises(InfrastructureError, match=lost):
        offsets_for_time(days.cluster, days.name, BEGUN + 7 * DAY, days.opened)


def test_what_is_trimmed_between_two_questions_is_found_in_the_archive(
    days: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = days.records()
    days.trim({0: 2, 1: 2})
    starts = ClusterAdmin.starts

    def late(cluster: ClusterAdmin, topics: Any) -> Position:
        days.trim({0: 24, 1: 24})
        return starts(cluster, topics)

    monkeypatch.setattr(ClusterAdmin, "starts", late)
    moment = BEGUN + 3 * DAY
    assert covered(whole, offsets_for_time(days.cluster, days.name, moment, days.opened)) == records_before(
        whole, moment
    )


def test_a_broken_or_foreign_archive_is_not_asked(days: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    days.trim({0: 24, 1: 24})
    file = min((Path(days.folder) / days.name).glob("day=*/00000-*.parquet"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InfrastructureError, match=f"{file.name} has .* bytes, not"):
        offsets_for_time(days.cluster, days.name, BEGUN, days.opened)
    monkeypatch.setattr(ParquetArchive, "identity", lambda self, topic: "another")
    with pytest.raises(InfrastructureError, match="with id another"):
        offsets_for_time(days.cluster, days.name, BEGUN, days.opened)


def typed(moment: int, microseconds: int = 0) -> str:
    """A time as people type it."""
    return (datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=moment, microseconds=microseconds)).isoformat()


def meant(past: Past, text: str) -> Position:
    """A place by its name, found in archive and topic."""
    return place_meant(summary, text, str(past.kafka.bootstrap_servers), past.folder)


def rows(past: Past, view: Any, place: Position) -> dict[Any, Any]:
    """The rows of a view built up to a place."""
    rebuild = past.work(Rebuild, view, pin="then")
    rebuild.run(rebuild.plan(place))
    return dict(past.views.as_of(view, "then").items())


def folded(view: Any, records: Sequence[RawRecord]) -> dict[Any, Any]:
    """The rows that these events make, folded in memory."""
    decoder = EventDecoder([view])
    events = (decoder.decode(record).event for record in records)
    return dict(fold(view, *(event for event in events if event is not None)))


def test_every_time_of_the_log_is_found_to_the_millisecond(past: Past) -> None:
    whole = read_settled(past.log(), TOPIC)
    times = sorted({record.time for record in whole})
    for moment in [past.noon, *times[:: len(times) // 20 + 1]]:
        assert covered(whole, meant(past, typed(moment))) == records_before(whole, moment)
        assert covered(whole, meant(past, typed(moment, 1))) == records_before(whole, moment + 1)
    assert covered(whole, meant(past, "1969-12-31T23:59:59.999Z")) == dict.fromkeys(range(app.partitions), 0)
    assert covered(whole, meant(past, "2100-01-01")) == records_before(whole, times[-1] + 1)


@pytest.mark.parametrize("view", [summary, by_owner], ids=lambda view: view.name)
def test_rows_as_of_a_time_in_the_archived_past_are_those_of_then(past: Past, view: Any) -> None:
    whole = read_settled(past.log(), TOPIC)
    then = [record for record in whole if record.time < past.noon]
    assert 100 < len(then) < len(whole) // 2
    expected = folded(view, then)
    assert rows(past, view, meant(past, typed(past.noon))) == expected
    assert rows(past, view, meant(past, "2000-01-01")) == {}
    # The twin: the topic alone is asked, and all that it has lost counts as older.
    with ClusterAdmin(past.kafka) as cluster:
        alone = cluster.starts_at(TOPIC, past.noon)
        assert alone == cluster.starts([TOPIC])
    assert rows(past, view, alone) != expected


def test_a_version_in_the_archived_past_is_found_with_the_position_of_all_partitions(past: Past) -> None:
    whole = read_settled(past.log(), TOPIC)
    with ClusterAdmin(past.kafka) as cluster:
        low = cluster.starts([TOPIC]).offsets[TOPIC]
    key = next(r.key for r in whole if r.key and r.offset < low[r.partition] // 2 and number(r) == 4).decode()
    at = next(record for record in whole if record.key == key.encode() and number(record) == 4)
    place = meant(past, f"{key}@4")
    expected = records_before(whole, at.time) | {
        at.partition: sum(r.partition == at.partition and r.offset <= at.offset for r in whole)
    }
    assert covered(whole, place) == expected
    with pytest.raises(InfrastructureError, match="gap in the log"):
        place_meant(summary, f"{key}@4", str(past.kafka.bootstrap_servers), "")


def number(record: RawRecord) -> int:
    """Which version of its stream an event made."""
    return int(dict(record.headers)["ce_sequence"] or 0)


START = Position({TOPIC: dict.fromkeys(range(app.partitions), 0)})


def behind(past: Past, archive: str, at: Position) -> float:
    """How many seconds a position is behind the end."""
    return ClusterState(past.kafka.bootstrap_servers, archive).seconds_behind(at)


def test_a_position_is_behind_by_the_age_of_its_next_event_which_archive_or_topic_has(past: Past) -> None:
    whole = read_settled(past.log(), TOPIC)
    last = {record.partition: record for record in whole}
    at = {partition: record.offset + 1 for partition, record in last.items()}
    with closing(past.topic()) as log:
        assert not Position({TOPIC: at}).covers(log.stable_ends([TOPIC])), "a marker must be left"
    assert behind(past, "", Position({TOPIC: at})) == 0.0, "no view is behind by the marker of a transaction"
    one = Position({TOPIC: {**at, 2: last[2].offset}})
    for archive, place, oldest in ("", one, last[2].time), (past.folder, START, min(record.time for record in whole)):
        before = time.time()
        seconds = behind(past, archive, place)
        assert before - oldest / 1000 <= seconds <= time.time() - oldest / 1000


def test_an_archive_is_opened_only_for_what_the_topic_has_lost_which_is_an_error_without_one(
    past: Past, tmp_path: Path
) -> None:
    at = Position({TOPIC: {record.partition: record.offset for record in read_settled(past.log(), TOPIC)}})
    assert behind(past, f"{tmp_path}/none-such", at) > 0.0
    with pytest.raises(InfrastructureError, match="none-such"):
        behind(past, f"{tmp_path}/none-such", START)
    lost = r"no longer holds offsets 0 to \d+, and no archive is configured; .* --archive DIR"
    with pytest.raises(LogGap, match=lost):
        behind(past, "", START)
