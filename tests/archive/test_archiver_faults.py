"""Archivers that are killed, meet each other, or find their files damaged: nothing is missed, doubled or believed."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from leftfold.errors import Fenced, InfrastructureError
from leftfold.parquet.archive_check import verify_archive
from leftfold.parquet.archive_reader import ParquetArchive
from leftfold.parquet.archiver import LEASE_SECONDS, Lease, leased
from leftfold.parquet.filesystem import ArchiveFileSystem
from leftfold.parquet.manifest import Span, end_of, pieces_of
from leftfold.ports.bulk import OffsetRange, raw
from tests.archive.topics import BEGUN, DAY, Topic, decision

pytestmark = pytest.mark.servers

MakeTopic = Callable[..., Topic]
ROOT = Path(__file__).parents[2]
STEPS = ("open_output", "sync", "put", "remove")
DEATHS = [
    pytest.param(*death, marks=() if death == ("put", "after") else pytest.mark.faults)
    for death in itertools.product(STEPS, ("before", "after"))
]


def values(archive: ParquetArchive, topic: Topic) -> list[Any]:
    found = []
    for partition, end in archive.ends(topic.name).items():
        part = OffsetRange(topic.name, partition, 0, end)
        found += [raw(part, record) for records in archive.read(part) for record in records]
    return found


def files_of(topic: Topic) -> list[Path]:
    return sorted((Path(topic.folder) / topic.name).glob("day=*/*.parquet"))


def archive_and_die(topic: Topic, step: str, nth: int, when: str) -> bool:
    """Runs an archiver in a process that kills itself at the nth such step; whether it came so far."""
    given = {"kafka": topic.kafka.bootstrap_servers, "topic": topic.name, "folder": topic.folder}
    told = json.dumps({**given, "step": step, "nth": nth, "when": when})
    command = [sys.executable, "-m", "tests.archive.dying", told]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240.0)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


@pytest.mark.parametrize(("step", "when"), DEATHS)
def test_a_killed_archiver_leaves_nothing_twice_and_misses_nothing(make_topic: MakeTopic, step: str, when: str) -> None:
    topic = make_topic()
    topic.history(days=2)
    whole, died = topic.records(), 0
    for nth in itertools.count(1, 2):
        if not archive_and_die(topic, step, nth, when):
            break
        died += 1
        kept = values(topic.opened(), topic)
        ends = topic.opened().ends(topic.name)
        assert kept == [record for record in whole if record.offset < ends.get(record.partition, 0)]
    assert died >= 2
    assert topic.archive().position == topic.cluster.ends([topic.name])
    assert values(topic.opened(), topic) == whole
    verified = verify_archive(ArchiveFileSystem(topic.folder), topic.name)
    assert not verified.damages
    assert verified.records == len(whole)


def test_the_twin_that_reads_what_lies_about_counts_twice(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.history(days=1)
    assert archive_and_die(topic, "put", 2, "before")
    topic.archive()
    whole = topic.records()
    assert values(topic.opened(), topic) == whole
    found = [row for file in files_of(topic) for row in pq.read_table(file, partitioning=None).to_pylist()]
    assert len(found) > len(whole)
    assert verify_archive(ArchiveFileSystem(topic.folder), topic.name).strays


def test_a_torn_file_is_not_folded(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.history(days=2)
    topic.archive()
    torn = files_of(topic)[1]
    torn.write_bytes(torn.read_bytes()[:-10])
    with pytest.raises(InfrastructureError, match=rf"{torn.name} has [\d,]+ bytes, not"):
        values(topic.opened(), topic)
    (damage,) = verify_archive(ArchiveFileSystem(topic.folder), topic.name).damages
    assert damage.path.endswith(torn.name)


def test_a_flipped_bit_is_found_by_checksums_and_by_nothing_else(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    # Random bytes are stored as they are: any change of one makes other bytes, and no error of decompression.
    # The first byte keeps row 10 from being least or greatest: those stand in the statistics of a page, too.
    topic.write(decision(*(bytes([row]) + os.urandom(4000) for row in range(20))))
    topic.archive()
    (file,) = files_of(topic)
    whole = bytearray(file.read_bytes())
    value = pq.read_table(file, partitioning=None).column("value")[10].as_py()
    whole[whole.index(value) + 100] ^= 1
    file.write_bytes(whole)
    with pytest.raises(InfrastructureError, match="cannot be read: .*[Cc][Rr][Cc]"):
        values(topic.opened(), topic)
    damages = verify_archive(ArchiveFileSystem(topic.folder), topic.name).damages
    assert any("another sha256" in damage.what for damage in damages)
    # The twin: read without checksums, the other bytes are taken for the event.
    assert pq.read_table(file, partitioning=None).column("value")[10].as_py() != value


def test_a_missing_file_is_a_hole_and_not_a_shorter_log(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.history(days=3)
    topic.archive()
    gone = files_of(topic)[1]
    gone.unlink()
    with pytest.raises(InfrastructureError, match=f"{gone.name} is missing"):
        values(topic.opened(), topic)
    assert [d.what for d in verify_archive(ArchiveFileSystem(topic.folder), topic.name).damages] == ["is missing"]
    # The twin: whoever reads the folder as a table gets fewer rows and no word about it.
    folder = Path(topic.folder) / topic.name
    assert pq.read_table(folder).num_rows == len(topic.records()) - 5


def test_manifests_older_than_the_files_tell_of_less_and_never_of_something_wrong(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.history(days=1)
    first = topic.archive()
    folder = Path(topic.folder) / topic.name / "_manifest"
    old = {file.name: file.read_bytes() for file in folder.iterdir()}
    topic.history(days=2)
    topic.archive()
    for file in folder.iterdir():
        file.unlink()
    for name, text in old.items():
        (folder / name).write_bytes(text)
    assert topic.opened().ends(topic.name) == first.position.offsets[topic.name]
    assert verify_archive(ArchiveFileSystem(topic.folder), topic.name).strays
    topic.archive()
    assert values(topic.opened(), topic) == topic.records()


def test_two_archivers_at_once_one_is_refused(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.history()
    with (
        leased(ArchiveFileSystem(topic.folder), topic.name),
        pytest.raises(InfrastructureError, match="works on this archive"),
    ):
        topic.archive()
    assert topic.archive().records == len(topic.records())


def test_the_twin_without_a_lease_does_the_work_twice_and_is_still_read_once(
    make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(1)
    topic.history(days=2)
    one, other = topic.archiver(), topic.archiver(most=1)
    plan = other.parts()
    one.run()
    monkeypatch.setattr(other, "parts", lambda: plan)
    other.run()
    assert len(files_of(topic)) > 2
    assert values(topic.opened(), topic) == topic.records()


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
    told = json.loads((tmp_path / "t.events" / "_lease.json").read_text())
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    (tmp_path / "t.events" / "_lease.json").write_text(json.dumps({**told, "process": int(ended.stdout)}))
    lease().take()


def test_overlapping_spans_are_read_once_and_a_gap_ends_the_archive() -> None:
    spans = [Span(0, 0, 10, "a"), Span(0, 0, 4, "b"), Span(0, 3, 12, "c"), Span(0, 12, 15, ""), Span(0, 16, 20, "d")]
    pieces = pieces_of(sorted(spans, key=lambda s: (s.start, -s.end)))
    assert [(p.span.path, p.start, p.end) for p in pieces] == [("a", 0, 10), ("c", 10, 12), ("", 12, 15)]
    assert end_of(pieces) == 15


def test_days_and_sizes_make_files(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.write(*(decision(b"%d" % n) for n in range(500)), at=BEGUN)
    topic.write(decision(b"next"), at=BEGUN + DAY)
    topic.archive(most=100)
    counts = [pq.read_table(file, partitioning=None).num_rows for file in files_of(topic)]
    assert len(counts) > 3
    assert (sum(counts), counts[-1]) == (501, 1)
    assert values(topic.opened(), topic) == topic.records()


@pytest.mark.parametrize("nth", [1, 3, 6])
def test_an_interrupted_run_leaves_no_trace_but_what_is_done(make_topic: MakeTopic, nth: int) -> None:
    topic = make_topic(1)
    topic.write(*(decision(b"%d" % n) for n in range(1000)))
    calls = itertools.count(1)

    def interrupted(count: int) -> None:
        if next(calls) == nth:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        topic.archive(most=200, tell=interrupted)
    verified = verify_archive(ArchiveFileSystem(topic.folder), topic.name)
    assert not verified.damages
    assert not verified.strays
    done = topic.archive()
    assert verified.records + done.records == 1000
    assert values(topic.opened(), topic) == topic.records()
