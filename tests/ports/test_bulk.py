"""Reads up to known ends: they end there, or say that nothing more came."""

from __future__ import annotations

import pytest

from leftfold import memory
from leftfold.errors import InfrastructureError
from leftfold.model.position import Position
from leftfold.ports.bulk import read_to, read_whole
from tests.domains.trade import NOW, Place, app

TOPIC = "orders.events"


def test_a_read_ends_before_what_was_appended_later_and_says_so_when_it_does_not_get_there() -> None:
    """The twin stops in silence, as if the partition ended there."""
    with memory(app, now=NOW) as world:
        world.client.send(Place(order="o", product="p", at=NOW))
        reader = world.log.reader()
        ends = reader.ends([TOPIC])
        starts = Position({TOPIC: dict.fromkeys(ends.offsets[TOPIC], 0)})
        world.client.send(Place(order="o", product="q", at=NOW))
        (record,) = read_whole(reader, starts, ends)
        assert (record.key, record.offset) == (b"o", 0)
        beyond = Position({TOPIC: {p: end + 9 for p, end in ends.offsets[TOPIC].items()}})
        assert sum(map(len, read_to(reader, starts, beyond, patience=0.0))) == 2
        with pytest.raises(InfrastructureError, match="nothing could be read for 0 s before orders.events"):
            list(read_whole(reader, starts, beyond, patience=0.0))
