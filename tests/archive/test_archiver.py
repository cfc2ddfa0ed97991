"""An archive holds a topic's committed records byte for byte, once each, whatever befalls its archivers."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leftfold.errors import ContractError, Fenced, InfrastructureError
from leftfold.kafka.records import StandIn
from leftfold.memory import MemoryLog
from leftfold.model.position import Position
from leftfold.parquet.archiver import LEASE_SECONDS, Archived, Archiver, Lease, _record, leased
from leftfold.parquet.filesystem import ArchiveFileSystem
from leftfold.parquet.manifest import OffsetSpan, end_of, pieces_of
from leftfold.ports.bulk import OffsetRange
from leftfold.ports.message_codec import UNREADABLE
from leftfold.ports.protocols import RawRecord
from tests.archive.dying import Die, dying
from tests.archive.topics import BEGUN, DAY, MakeTopic, Topic, decision
from tests.engine.committed_log import CommittedLog
from tests.waiting import WAIT_SECONDS
from tests.worker.raw_headers import produce_with_header

pytestmark = pytest.mark.servers


def test_an_archive_holds_every_record_byte_for_byte(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.history()
    odd = {"headers": [("a", None), ("a", b""), ("ü", b"\xff\x00")]}
    topic.write([{"key": b"", "value": None, **odd}, {"key": None, "value": b"", "headers": []}], partition=1)
    topic.write([{"key": b"\xff", "value": b"\x00" * 70_000}], partition=1, at=BEGUN + 5 * DAY)
    done = topic.archive()
    kept = topic.archived()
    assert kept == topic.records()
    assert len(kept) == done.records
    assert done.position == topic.cluster.ends([topic.name])
    assert topic.archived(start=2) == topic.records(2)
    topic.archive(f"file://{topic.folder}-by-uri")
    assert topic.archived(f"file://{topic.folder}-by-uri") == topic.archived(f"{topic.folder}-by-uri") == kept


header = st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=6))
record = st.fixed_dictionaries(
    {
        "key": st.none() | st.binary(max_size=5),
        "value": st.none() | st.binary(max_size=20),
        "headers": st.lists(header, max_size=4),
    }
)


@given(st.lists(st.lists(record, min_size=1, max_size=6), min_size=1, max_size=4), st.integers(1, 5))
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_records_survive_in_files_of_any_size(
    make_topic: MakeTopic, history: list[list[dict[str, Any]]], most: int
) -> None:
    topic = make_topic(1)
    folder = f"{topic.folder}-{topic.name}"
    for number, records in enumerate(history):
        topic.write(records, at=BEGUN + number * DAY // 2)
        topic.archive(folder, most=most)
    assert topic.archived(folder) == topic.records()


def test_files_are_of_one_day_and_readable_by_other_tools(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.history()
    topic.archive()
    folder = Path(topic.folder) / topic.name
    days = sorted(path.name for path in folder.glob("day=*"))
    assert days == [f"day={datetime.fromtimestamp((BEGUN + d * DAY) / 1000, UTC).date()}" for d in range(2)]
    table = pq.read_table(folder, filters=[("day", "=", days[1].removeprefix("day="))])
    table = table.sort_by([("partition", "ascending"), ("offset", "ascending")])
    rows = table.select(["partition", "type", "version", "sequence", "value", "day"]).to_pylist()
    assert [row["value"] for row in rows if row["partition"] == 1] == [b"a1", b"b", b"c", b"d", b"e" * 100]
    assert {(row["type"], row["version"]) for row in rows} == {("things.Happened", 1)}
    assert [row["sequence"] for row in rows[:4]] == [1, 1, 2, 3]
    assert str(table.schema.field("time").type) == str(table.schema.field("timestamp").type) == "timestamp[us, tz=UTC]"
    (file, *_) = folder.glob("day=*/*.parquet")
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"


def test_a_run_continues_where_the_last_one_ended(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.history()
    first = topic.archive()
    assert topic.archive().records == 0
    topic.history()
    second = topic.archive()
    assert second.records == first.records
    assert topic.archived() == topic.records()
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
    open_one.commit_transaction(WAIT_SECONDS)
    topic.archive()
    assert [record.value for record in topic.archived()] == [b"1", b"2", b"3"]


def test_a_range_without_any_record_is_accounted_for(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.write(decision(b"lost"), commit=False)
    assert topic.archive().files == 0
    assert topic.opened().ends(topic.name) == topic.cluster.ends([topic.name]).offsets[topic.name]


def test_neither_a_run_nor_midnight_cuts_a_decision_in_two(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.write(decision(b"whole"), decision(b"1", b"2", whole=3))
    topic.archive()
    assert [record.value for record in topic.archived()] == [b"whole"]
    topic.write([decision(b"1", b"2", b"3")[2]])
    topic.archive()
    assert topic.archived() == topic.records()
    topic = make_topic(1)
    before, after = decision(b"1", b"2", b"3")[:2], decision(b"1", b"2", b"3")[2:]
    producer = topic.open_transaction()
    topic.produce(producer, before, at=BEGUN + DAY - 1)
    topic.produce(producer, after, at=BEGUN + DAY)
    producer.commit_transaction(WAIT_SECONDS)
    topic.write(decision(b"4"), at=BEGUN + DAY)
    topic.archive()
    files = sorted((Path(topic.folder) / topic.name).glob("day=*/*.parquet"))
    assert [pq.read_table(file, partitioning=None).num_rows for file in files] == [3, 1]


def test_a_header_that_cannot_be_read_stops_the_archive(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.write(decision(b"1"))
    produce_with_header(topic.kafka.bootstrap_servers, topic.name, 0, b"k", b"2", b"\xff")
    with pytest.raises(ContractError, match="header whose name is not UTF-8"):
        topic.archive()


def test_a_batch_that_cannot_be_decompressed_stops_the_archive(make_topic: MakeTopic) -> None:
    """A record in its place would pass for what it held, and what it held would be trimmed."""
    topic = make_topic(1)
    topic.write(decision(b"1"))
    unreadable = StandIn(RawRecord(topic.name, 0, 7, None, None, [(UNREADABLE, b"lz4: broken")]))
    with pytest.raises(
        ContractError, match=r"\[0\]@7: the batch that ends here cannot be decompressed \(lz4: broken\)"
    ):
        _record(OffsetRange(topic.name, 0, 0, 8), unreadable)


def test_a_topic_that_was_made_again_or_has_lost_its_beginning_is_not_archived(make_topic: MakeTopic) -> None:
    topic, again = make_topic(1), make_topic(1)
    for one in (topic, again):
        one.history(days=1)
    topic.archive()
    (Path(topic.folder) / topic.name).rename(Path(topic.folder) / again.name)
    with pytest.raises(InfrastructureError, match="archive of another topic"):
        again.archive()
    again.trim({0: 3})
    with pytest.raises(InfrastructureError, match=r"\[0\] no longer holds offsets 0 to 2"):
        again.archive(f"{again.folder}-elsewhere")


def test_a_topic_that_lost_its_last_records_is_not_archived_any_further(tmp_path: Path) -> None:
    """It has the same id, as when a broker was restored from an old disk."""
    log, place = MemoryLog(), ArchiveFileSystem(str(tmp_path))
    log.create("things.events", 2)

    def append(count: int) -> None:
        for number in range(count):
            log.append("things.events", 1, b"k", b"%d" % number, [("ce_decision", b"1/1")], time=BEGUN)

    def archive() -> Archived:
        return Archiver(place, "things.events", "id", CommittedLog(log.reader())).run()

    append(5)
    assert archive().records == 5
    del log.topics["things.events"][1][3:]
    with pytest.raises(
        InfrastructureError, match=r"things\.events\[1\] ends at 3, but its archive .* at 5: .* --to DIR"
    ):
        archive()
    append(2)
    assert archive().records == 0, "as long as it was: nothing shows the loss"


STEPS = ("open_output", "sync", "put", "remove")
DEATHS = [
    pytest.param(*death, marks=() if death == ("put", "after") else pytest.mark.faults)
    for death in itertools.product(STEPS, ("before", "after"))
]


def files_of(topic: Topic) -> list[Path]:
    return sorted((Path(topic.folder) / topic.name).glob("day=*/*.parquet"))


@pytest.fixture(scope="module")
def die() -> Iterator[Die]:
    with dying() as die:
        yield die


@pytest.mark.parametrize(("step", "when"), DEATHS)
def test_a_killed_archiver_leaves_nothing_twice_and_misses_nothing(
    make_topic: MakeTopic, die: Die, step: str, when: str
) -> None:
    topic = make_topic()
    topic.history()
    whole, died = topic.records(), 0
    for nth in itertools.count(1, 2):
        if not die(topic, step, nth, when):
            break
        died += 1
        kept = topic.archived()
        ends = topic.opened().ends(topic.name)
        assert kept == [record for record in whole if record.offset < ends.get(record.partition, 0)]
    assert died >= 2
    assert topic.archive().position == topic.cluster.ends([topic.name])
    assert topic.archived() == whole
    verified = topic.verified()
    assert not verified.damages
    assert verified.records == len(whole)


def test_twin_reading_every_file_counts_records_twice(make_topic: MakeTopic, die: Die) -> None:
    topic = make_topic(1)
    topic.history(days=1)
    assert die(topic, "put", 2, "before")
    topic.archive()
    whole = topic.records()
    assert topic.archived() == whole
    found = [row for file in files_of(topic) for row in pq.read_table(file, partitioning=None).to_pylist()]
    assert len(found) > len(whole)
    assert topic.verified().strays


def test_a_torn_file_is_not_folded_and_a_missing_one_is_a_gap(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.history()
    topic.archive()
    torn = files_of(topic)[1]
    torn.write_bytes(torn.read_bytes()[:-10])
    with pytest.raises(InfrastructureError, match=rf"{torn.name} has [\d,]+ bytes, not"):
        topic.archived()
    (damage,) = topic.verified().damages
    assert damage.path.endswith(torn.name)
    torn.unlink()
    with pytest.raises(InfrastructureError, match=f"{torn.name} is missing"):
        topic.archived()
    assert [d.what for d in topic.verified().damages] == ["is missing"]
    # The twin: a reader of the folder as a table gets fewer rows and no word about it.
    assert pq.read_table(Path(topic.folder) / topic.name).num_rows == len(topic.records()) - 5


def test_a_flipped_bit_is_found_by_checksums_and_by_nothing_else(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    # Random bytes are stored as they are: any change of one makes other bytes, and no error of decompression.
    # The first byte keeps row 10 from being least or greatest: those stand in the statistics of a page, too.
    topic.write(decision(*(bytes([row]) + os.urandom(4000) for row in range(20))))
    topic.folder += " with a space"
    topic.archive()
    (file,) = files_of(topic)
    whole = bytearray(file.read_bytes())
    value = pq.read_table(file, partitioning=None).column("value")[10].as_py()
    whole[whole.index(value) + 100] ^= 1
    file.write_bytes(whole)
    with pytest.raises(InfrastructureError, match="cannot be read: .*[Cc][Rr][Cc].* --archive '.* space'; "):
        topic.archived()
    damages = topic.verified().damages
    assert any("another sha256" in damage.what for damage in damages)
    # The twin: read without checksums, the other bytes are taken for the event.
    assert pq.read_table(file, partitioning=None).column("value")[10].as_py() != value


def test_manifests_older_than_the_files_list_less_and_nothing_wrong(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.history(days=1)
    first = topic.archive()
    folder = Path(topic.folder) / topic.name / "_manifest"
    old = {file.name: file.read_bytes() for file in folder.iterdir()}
    topic.history()
    topic.archive()
    for file in folder.iterdir():
        file.unlink()
    for name, text in old.items():
        (folder / name).write_bytes(text)
    assert topic.opened().ends(topic.name) == first.position.offsets[topic.name]
    assert topic.verified().strays
    topic.archive()
    assert topic.archived() == topic.records()


def test_two_archivers_at_once_one_is_refused(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.history()
    with (
        leased(ArchiveFileSystem(topic.folder), topic.name),
        pytest.raises(InfrastructureError, match="works on this archive"),
    ):
        topic.archive()
    assert topic.archive().records == len(topic.records())


def test_twin_without_a_lease_records_are_written_twice_and_read_once(
    make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(1)
    topic.history()
    one, other = topic.archiver(), topic.archiver(most=1)
    plan = other.parts()
    one.run()
    monkeypatch.setattr(other, "parts", lambda: plan)
    other.run()
    assert len(files_of(topic)) > 2
    assert topic.archived() == topic.records()


def test_a_lease_ends_with_its_process_or_its_time(tmp_path: Path) -> None:
    place, now = ArchiveFileSystem(str(tmp_path)), [1000.0]

    def lease() -> Lease:
        return Lease(place, "t.events", clock=lambda: now[0])

    first = lease()
    first.take()
    now[0] += LEASE_SECONDS - 1
    with pytest.raises(InfrastructureError, match="1 s"):
        lease().take()
    first.renew()
    now[0] += 2
    with pytest.raises(InfrastructureError, match="works on this archive"):
        lease().take()
    now[0] += LEASE_SECONDS
    second = lease()
    second.take()
    with pytest.raises(Fenced, match="another archiver has taken over"):
        first.renew()
    first.give_up()
    with pytest.raises(InfrastructureError, match="works on this archive"):
        lease().take()
    reported = json.loads((tmp_path / "t.events" / "_lease.json").read_text())
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    (tmp_path / "t.events" / "_lease.json").write_text(json.dumps({**reported, "process": int(ended.stdout)}))
    lease().take()


def test_overlapping_spans_are_read_once_and_a_gap_ends_the_archive() -> None:
    spans = [
        OffsetSpan(0, 0, 10, "a"),
        OffsetSpan(0, 0, 4, "b"),
        OffsetSpan(0, 3, 12, "c"),
        OffsetSpan(0, 12, 15, ""),
        OffsetSpan(0, 16, 20, "d"),
    ]
    pieces = pieces_of(sorted(spans, key=lambda s: (s.start, -s.end)))
    assert [(p.span.path, p.start, p.end) for p in pieces] == [("a", 0, 10), ("c", 10, 12), ("", 12, 15)]
    assert end_of(pieces) == 15


def test_an_interrupted_run_leaves_only_complete_files(make_topic: MakeTopic) -> None:
    topic, nth = make_topic(1), 3
    topic.write(*(decision(b"%d" % n) for n in range(1000)))
    calls = itertools.count(1)

    def interrupted(count: int) -> None:
        if next(calls) == nth:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        topic.archive(most=200, tell=interrupted)
    verified = topic.verified()
    assert not verified.damages
    assert not verified.strays
    done = topic.archive()
    assert verified.records + done.records == 1000
    assert topic.archived() == topic.records()
