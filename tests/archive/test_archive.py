"""An archive holds the topic's records byte for byte, once each, up to whole decisions that are committed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leftfold.errors import ContractError, InfrastructureError
from leftfold.model.position import Position
from leftfold.parquet.archive_reader import ParquetArchive
from leftfold.ports.bulk import OffsetRange, raw
from leftfold.ports.protocols import RawRecord
from tests.archive.topics import BEGUN, DAY, Topic, decision
from tests.worker.raw_headers import produce_with_header

pytestmark = pytest.mark.servers

MakeTopic = Callable[..., Topic]


def archived(archive: ParquetArchive, topic: str, start: int = 0) -> list[RawRecord]:
    found = []
    for partition, end in archive.ends(topic).items():
        part = OffsetRange(topic, partition, start, end)
        for records in archive.read(part):
            found += [raw(part, record) for record in records]
    return found


def test_an_archive_holds_every_record_byte_for_byte(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.history()
    odd = {"headers": [("a", None), ("a", b""), ("ü", b"\xff\x00")]}
    topic.write([{"key": b"", "value": None, **odd}, {"key": None, "value": b"", "headers": []}], partition=1)
    topic.write([{"key": b"\xff", "value": b"\x00" * 70_000}], partition=1, at=BEGUN + 5 * DAY)
    done = topic.archive()
    kept = archived(topic.opened(), topic.name)
    assert kept == topic.records()
    assert len(kept) == done.records
    assert done.position == topic.cluster.ends([topic.name])


header = st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=6))
record = st.fixed_dictionaries(
    {
        "key": st.none() | st.binary(max_size=5),
        "value": st.none() | st.binary(max_size=20),
        "headers": st.lists(header, max_size=4),
    }
)


@given(st.lists(st.lists(record, min_size=1, max_size=6), min_size=1, max_size=4), st.integers(1, 5))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_records_survive_in_files_of_any_size(
    make_topic: MakeTopic, history: list[list[dict[str, Any]]], most: int
) -> None:
    topic = make_topic(1)
    folder = f"{topic.folder}-{topic.name}"
    for number, records in enumerate(history):
        topic.write(records, at=BEGUN + number * DAY // 2)
        topic.archive(folder, most=most)
    assert archived(topic.opened(folder), topic.name) == topic.records()


def test_a_part_of_a_file_can_be_read(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.write(*(decision(b"%d" % number) for number in range(50)))
    topic.archive()
    assert archived(topic.opened(), topic.name, 20) == topic.records(20)


def test_files_are_of_one_day_and_anybody_can_read_them(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.history(days=3)
    topic.archive()
    folder = Path(topic.folder) / topic.name
    days = sorted(path.name for path in folder.glob("day=*"))
    assert days == [f"day={datetime.fromtimestamp((BEGUN + d * DAY) / 1000, UTC).date()}" for d in range(3)]
    table = pq.read_table(folder, filters=[("day", "=", days[1].removeprefix("day="))])
    table = table.sort_by([("partition", "ascending"), ("offset", "ascending")])
    rows = table.select(["partition", "type", "version", "sequence", "value", "day"]).to_pylist()
    assert [row["value"] for row in rows if row["partition"] == 1] == [b"a1", b"b", b"c", b"d", b"e" * 100]
    assert {(row["type"], row["version"]) for row in rows} == {("things.Happened", 1)}
    assert [row["sequence"] for row in rows[:4]] == [1, 1, 2, 3]
    assert str(table.schema.field("time").type) == str(table.schema.field("timestamp").type) == "timestamp[us, tz=UTC]"
    (file, *_) = folder.glob("day=*/*.parquet")
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"


def test_a_run_goes_on_where_the_last_one_ended(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.history()
    first = topic.archive()
    assert topic.archive().records == 0
    topic.history()
    second = topic.archive()
    assert second.records == first.records
    assert archived(topic.opened(), topic.name) == topic.records()
    (manifest,) = (Path(topic.folder) / topic.name / "_manifest").iterdir()
    assert manifest.suffix == ".json"


def test_nothing_behind_an_open_transaction_is_archived_yet(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.write(decision(b"1"))
    topic.wait_settled()
    open_one = topic.open_transaction()
    topic.produce(open_one, decision(b"2"))
    topic.write(decision(b"3"))
    assert topic.archive(settled=False).position == Position({topic.name: {0: 2}})
    open_one.commit_transaction(20)
    topic.archive()
    assert [record.value for record in archived(topic.opened(), topic.name)] == [b"1", b"2", b"3"]


def test_a_range_without_any_record_is_accounted_for(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.write(decision(b"lost"), commit=False)
    assert topic.archive().files == 0
    assert topic.opened().ends(topic.name) == topic.cluster.ends([topic.name]).offsets[topic.name]


def test_no_decision_is_cut_in_two(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.write(decision(b"whole"), decision(b"1", b"2", whole=3))
    topic.archive()
    assert [record.value for record in archived(topic.opened(), topic.name)] == [b"whole"]
    topic.write([decision(b"1", b"2", b"3")[2]])
    topic.archive()
    assert archived(topic.opened(), topic.name) == topic.records()


def test_midnight_cuts_no_decision_in_two(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    before, after = decision(b"1", b"2", b"3")[:2], decision(b"1", b"2", b"3")[2:]
    producer = topic.open_transaction()
    topic.produce(producer, before, at=BEGUN + DAY - 1)
    topic.produce(producer, after, at=BEGUN + DAY)
    producer.commit_transaction(20)
    topic.write(decision(b"4"), at=BEGUN + DAY)
    topic.archive()
    files = sorted((Path(topic.folder) / topic.name).glob("day=*/*.parquet"))
    assert [pq.read_table(file, partitioning=None).num_rows for file in files] == [3, 1]


def test_an_archive_at_a_uri_is_the_same(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.history()
    topic.archive(f"file://{topic.folder}")
    assert archived(topic.opened(f"file://{topic.folder}"), topic.name) == topic.records()
    assert archived(topic.opened(), topic.name) == topic.records()


def test_a_header_that_cannot_be_read_stops_the_archive(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.write(decision(b"1"))
    produce_with_header(topic.kafka.bootstrap_servers, topic.name, 0, b"k", b"2", b"\xff")
    with pytest.raises(ContractError, match="header whose name is not UTF-8"):
        topic.archive()


def test_a_topic_that_was_made_anew_is_another_one(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.history()
    topic.archive()
    again = make_topic(1)
    again.history()
    (Path(topic.folder) / topic.name).rename(Path(topic.folder) / again.name)
    with pytest.raises(InfrastructureError, match="archive of another topic"):
        again.archive()


def test_a_topic_that_has_lost_its_beginning_is_not_archived(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.history()
    topic.trim({0: 3})
    with pytest.raises(InfrastructureError, match=r"\[0\] no longer holds offsets 0 to 2"):
        topic.archive()
