"""What a stream would have to read and a topic no longer holds."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from leftfold.engine.bulk_log import Range
from leftfold.engine.course import Course
from leftfold.engine.hole import hole, out_of_reach, unreachable
from leftfold.errors import LogHole
from leftfold.memory.log import MemoryLog
from leftfold.memory.views import MemoryViewStore
from leftfold.position import Position
from tests.ledger import by_owner

TOPIC = "ledgers.events"


def test_what_lies_between_a_place_and_the_start_of_a_topic_is_out_of_reach() -> None:
    starts = Position({TOPIC: {0: 0, 1: 5, 2: 7}, "b.events": {0: 3}})
    assert unreachable(starts, Position({TOPIC: {0: 0, 1: 5, 2: 9}, "b.events": {0: 3}})) == []
    assert unreachable(starts, Position({TOPIC: {1: 4}, "b.events": {0: 9}})) == [
        Range(TOPIC, 1, 4, 5),
        Range(TOPIC, 2, 0, 7),
    ]


def test_a_hole_names_the_offsets_and_what_to_type() -> None:
    error = out_of_reach("v", [Range(TOPIC, 1, 4, 9)], "type this")
    assert "ledgers.events[1] no longer holds offsets 4 to 8" in str(error)
    assert str(error).endswith("type this")
    assert isinstance(hole(TOPIC, 1, 4, 9), LogHole)


def test_every_partition_that_lacks_offsets_is_named_as_long_as_there_are_few() -> None:
    few = [Range("a.events", 0, 0, 10), Range("a.events", 3, 5, 9)]
    assert str(out_of_reach("v", few, "mend it")) == (
        "a hole in the log: a.events[0] no longer holds offsets 0 to 9, a.events[3] offsets 5 to 8, and Spark's stream "
        "of view v cannot read an archive; without them its rows would be wrong. mend it"
    )
    many = [Range("a.events", partition, 0, 10) for partition in range(20)]
    told = str(out_of_reach("v", many, "mend it"))
    assert "a.events[7] offsets 0 to 9 and 12 more partitions, and Spark's" in told
    assert "a.events[8]" not in told
    nine = str(out_of_reach("v", many[:9], "mend it"))
    assert "a.events[7] offsets 0 to 9 and 1 more partition, and Spark's" in nine


def test_no_generation_is_begun_over_a_hole() -> None:
    store, log = MemoryViewStore(), MemoryLog()
    log.create(TOPIC, 3)

    def refuse(topics: Mapping[str, int]) -> None:
        raise LogHole(str(dict(topics)))

    course = Course(by_owner, store, log.reader(), lambda what, details: None, check=refuse)
    with pytest.raises(LogHole, match=r"\{'ledgers.events': 3\}"):
        course.look()
    assert not store.registry(by_owner.name).generations
    # The twin: without the check there is one.
    assert Course(by_owner, store, log.reader(), lambda what, details: None).look()
