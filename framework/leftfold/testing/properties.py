"""Properties that every decider and every cross-stream view must have; call them with your own histories."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from leftfold.codec import MessageCodec
from leftfold.decider import Decider
from leftfold.engine.deciding import Accepted, Duplicate, decide
from leftfold.engine.received import Received
from leftfold.engine.stream import Stream, StreamCodec
from leftfold.messages import Command, Event
from leftfold.testing.folding import fold
from leftfold.view import View

__all__ = ["check_deciding_twice", "check_interleavings"]


def check_deciding_twice(decider: Decider[Any, Any, Any], commands: Iterable[Command]) -> None:
    """Decides each command twice under one id: the second time adds nothing, and from equal states come equal events.

    The stream goes through its stored form in between, so this also proves that the state can be stored.

    Raises:
        AssertionError: a decision depends on something other than command and state, or storing changed the state.
    """
    codec: MessageCodec[Any] = MessageCodec(decider.events)
    streams = StreamCodec(decider.state, decider.initial_state)
    held: dict[str, Stream[Any]] = {}
    for number, command in enumerate(commands):
        key = getattr(command, command.__leftfold__.key)
        received = Received(command, key, f"c{number}", "body", b"2026-01-01T00:00:00Z", b"", b"")
        before = held.get(key, streams.new())
        one, other = before.copy(), streams.decode(streams.encode(before), 0.0)
        first, second = (decide(decider, codec, stream, received, 0.0) for stream in (one, other))
        if isinstance(first, Accepted):
            assert first == second, f"{command!r} decided {first} and then {second}; decide must be pure"
        assert one.state == other.state, f"storing changed the state {one.state!r} to {other.state!r}"
        if isinstance(first, Accepted):
            again = decide(decider, codec, one.copy(), received, 0.0)
            assert isinstance(again, Duplicate), f"{command!r} sent again with one id gave {again}"
        held[key] = one


def check_interleavings(view: View[Any, Any], *streams: Sequence[Event], tries: int = 50, seed: int = 0) -> None:
    """Folds the streams in random interleavings, each stream in its own order: the rows must be equal.

    Raises:
        AssertionError: the fold depends on the order between streams; the message names the seed and the rows.
    """

    def encoded(row: Any) -> object:
        return None if row is None else view.rows.encode(row)

    chance = random.Random(seed)  # a repeatable shuffle
    expected = fold(view, *(event for stream in streams for event in stream))
    for number in range(tries):
        order = [index for index, stream in enumerate(streams) for _ in stream]
        chance.shuffle(order)
        heads = [iter(stream) for stream in streams]
        rows = fold(view, *(next(heads[index]) for index in order))
        different = {k for k in expected.keys() | rows.keys() if encoded(expected.get(k)) != encoded(rows.get(k))}
        for key in different:
            raise AssertionError(
                f"view {view.name} gives {rows.get(key)!r} for {key!r} in interleaving {number} of seed {seed}, but "
                f"{expected.get(key)!r} stream by stream; its fold must not depend on the order between streams"
            )
