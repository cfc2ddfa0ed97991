"""A topic is trimmed only of what the archive holds record by record, and never inside a decision."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from leftfold.engine.archive.archived_log import ArchivedReader
from leftfold.engine.archive.retention import Trim, Trimming
from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.model.position import Position
from leftfold.parquet.archive_reader import ParquetArchive
from tests.archive.topics import MakeTopic, Topic, decision
from tests.waiting import read_until, wait_until

pytestmark = pytest.mark.servers


def trim(topic: Topic, before: dict[int, int], folder: str = "") -> Trim:
    with closing(KafkaBulkLog(topic.kafka)) as log:
        open_archive = lambda: ParquetArchive(folder or topic.folder)  # noqa: E731
        trimming = Trimming(topic.name, open_archive, log, topic.cluster.delete_records)
        plan = trimming.plan(before)
        trimming.run(plan)
    return plan


def starts(topic: Topic) -> dict[int, int]:
    return dict(topic.cluster.starts([topic.name]).offsets[topic.name])


def test_archived_records_are_trimmed(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.history()
    whole = topic.records()
    ends = dict(topic.archive().position.offsets[topic.name])
    plan = trim(topic, ends)
    assert starts(topic) == ends
    assert plan.records == len(whole)
    topic.write(decision(b"later"))
    topic.archive()
    assert topic.opened().ends(topic.name) == topic.cluster.ends([topic.name]).offsets[topic.name]
    assert not trim(topic, ends).parts


def test_records_that_are_not_archived_are_not_trimmed(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.history()
    ends = dict(topic.archive().position.offsets[topic.name])
    topic.history(days=1)
    with pytest.raises(InfrastructureError, match=rf"\[1\] is archived up to {ends[1]} only.*leftfold log archive"):
        trim(topic, {0: 2, 1: ends[1] + 2})
    with pytest.raises(InfrastructureError, match=r"archived up to 0 only.* --to '\S+/else where'$"):
        trim(topic, ends, str(Path(topic.folder) / "else where"))
    with pytest.raises(ConfigurationError, match=r"\[0\] ends at \d+: nothing lies before 100000"):
        trim(topic, {0: 100_000})
    with pytest.raises(ConfigurationError, match="has no partition 7; see: leftfold topics list"):
        trim(topic, {7: 1})
    assert starts(topic) == {0: 0, 1: 0}


def test_a_reader_that_comes_after_the_plan_loses_nothing(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.history()
    ends = dict(topic.archive().position.offsets[topic.name])
    with closing(KafkaBulkLog(topic.kafka)) as log:
        made = partial(Trimming, topic.name, lambda: ParquetArchive(topic.folder), log, topic.cluster.delete_records)
        plan = made().plan(ends)
        with pytest.raises(InfrastructureError, match="process late has read .* up to 0 only, so nothing before"):
            made(listeners={"process late": {}}).run(plan)
        assert starts(topic) == {0: 0, 1: 0}
        made(listeners={"process ready": ends}).run(plan)
    assert starts(topic) == ends


def test_no_decision_is_cut_in_two_by_a_trim(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.write(decision(b"0"), decision(b"1", b"2", b"3"), decision(b"4"))
    topic.archive()
    for before, start in ((3, 1), (2, 1), (4, 4), (5, 5), (6, 6)):
        trim(topic, {0: before})
        assert starts(topic) == {0: start}
    # The twin: Kafka's own tool cuts at the offset that it gets.
    other = make_topic(1)
    other.write(decision(b"0"), decision(b"1", b"2", b"3"))
    other.trim({0: 2})
    assert [dict(record.headers)["ce_decision"] for record in other.records(2)] == [b"2/3", b"3/3"]


def test_an_archive_that_differs_keeps_everything(make_topic: MakeTopic) -> None:
    topic, forged = make_topic(1), make_topic(1)
    topic.folder = forged.folder = f"{topic.folder} of both"
    topic.write(decision(b"right"))
    forged.write(decision(b"wrong"))
    forged.archive()
    (Path(topic.folder) / forged.name).rename(Path(topic.folder) / topic.name)
    difference = "@0: archive and topic differ in value, headers; nothing is deleted"
    with pytest.raises(InfrastructureError, match=difference) as caught:
        trim(topic, {0: 1})
    assert str(caught.value).endswith(f" --deep --archive '{topic.folder}'"), "or another archive is looked at"
    assert starts(topic) == {0: 0}


def test_a_reader_whose_next_records_are_trimmed_continues_in_the_archive(make_topic: MakeTopic) -> None:
    topic = make_topic(1)
    topic.write(*(decision(b"%d" % n) for n in range(20)))
    whole = topic.records()
    ends = dict(topic.archive().position.offsets[topic.name])
    reader = ArchivedReader(KafkaLogReader(topic.kafka), topic.opened)
    start = Position({topic.name: {0: 0}})
    reader.seek(start)
    trim(topic, ends)
    # What the client has fetched already it still hands out; from the start again, it meets the gap.
    reader._reader.seek(start)
    assert read_until(reader, Position({topic.name: {0: ends[0]}}), limit=7) == whole
    # The twin: the topic's own reader stops there for good.
    bare = reader._reader
    bare.seek(start)
    with pytest.raises(InfrastructureError, match="gap in the log"):
        wait_until(lambda: bare.poll(7, 0.2), "the gap")
    reader.close()
