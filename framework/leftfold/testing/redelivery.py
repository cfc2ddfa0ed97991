"""A property that every process must have; call it with your own histories."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from leftfold.engine.inputs import NACK, Input
from leftfold.engine.instance import Instance, InstanceCodec, Sent
from leftfold.engine.reacting import Failed, Passed, Reactor
from leftfold.engine.reply import nack
from leftfold.messages import Event
from leftfold.process import Process, Rejected

__all__ = ["check_redelivery"]


def check_redelivery(process: Process[Any, Any, Any], inputs: Iterable[Any]) -> None:
    """Delivers each input of one instance twice: the second time nothing happens, and equal states react equally.

    The instance goes through its stored form in between, so this also proves that its state can be stored.

    Raises:
        AssertionError: a reaction depends on something other than input and state, storing changed the state, the
            inputs are of several business keys, or a command is rejected that was never sent.
    """
    reactor, codec = Reactor(process), InstanceCodec(process.state, process.initial_state)
    instance, keys = codec.new(), set[str | None]()
    for number, what in enumerate(inputs):
        if isinstance(what, Event):
            keys.add(process.correlate(what))
            assert len(keys) == 1, (
                f"{what!r} belongs to another instance; {process.name}.correlate gave {sorted(map(str, keys))}"
            )
        given = _input(reactor, instance, what, number)
        one, other = instance.copy(), codec.decode(codec.encode(instance), 0.0)
        first, second = reactor.take(one, given), reactor.take(other, given)
        assert not isinstance(first, Failed), f"{what!r} cannot be taken: {first.error}"
        assert first == second, f"{what!r} led to {first} and then to {second}; react must be pure"
        assert one == other, f"storing changed the instance {one!r} to {other!r}"
        again = reactor.take(one.copy(), given)
        assert isinstance(again, Passed), f"{what!r} delivered again led to {again}"
        instance = one


def _input(reactor: Reactor, instance: Instance[Any], what: Any, number: int) -> Input:
    """The input as a lane reads it."""
    headers = f"i{number}", b"2026-01-01T00:00:00Z", b"correlation", b""
    origin = "topic/0", number, 0
    if not isinstance(what, Rejected):
        type_ = reactor.events.types[type(what)]
        return Input(type_, reactor.events.encode(what), "key", *headers, "", origin)
    sent = Sent(reactor.commands.types[type(what.command)].decode(), reactor.commands.encode(what.command).decode())
    found = [id_ for id_, waiting in instance.waiting.items() if waiting == sent]
    assert found, f"{what.command!r} is rejected but was not sent, or was answered before"
    return Input(NACK, json.dumps(nack(what.error)).encode(), "key", *headers, found[0], origin)
