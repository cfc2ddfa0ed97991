"""The assignment of a group's member is read as Kafka's consumer protocol writes it, and others do no harm."""

from __future__ import annotations

import struct

import pytest

from leftfold.kafka.administration.groups import _assigned

WHOLE = struct.pack(">hih8sii", 1, 1, 8, b"a.events", 2, 3) + struct.pack(">ii", 0, -1)


def test_partitions_are_sorted_by_topic() -> None:
    assert _assigned(WHOLE[:-4] + struct.pack(">h6sii", 6, b"b.dead", 1, 7)) == {"a.events": [0, 3]}
    both = struct.pack(">hi", 1, 2) + WHOLE[6:-4] + struct.pack(">h6sii", 6, b"b.dead", 1, 7)
    assert _assigned(both) == {"a.events": [0, 3], "b.dead": [7]}


@pytest.mark.parametrize("foreign", [b"", b"\0", b"roundrobin", b"\xff" * 40, *(WHOLE[:n] for n in range(6, 26, 3))])
def test_what_is_no_assignment_of_this_protocol_names_no_partition(foreign: bytes) -> None:
    assert _assigned(foreign) == {}
