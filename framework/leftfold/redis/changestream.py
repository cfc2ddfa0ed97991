"""The stream of a bucket's changes: capped, written with the rows, read by watchers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from leftfold.position import Position
from leftfold.questions import Changed, Changes, Recent
from leftfold.redis.keys import BucketKeys
from leftfold.redis.wording import Command, ask_live, hash_of, live_in

__all__ = ["Recently", "addition"]

POSITION, KEYS = b"position", b"keys"


def addition(stream: bytes, position: Position, keys: Iterable[str], most: int) -> Command:
    """The command that adds an entry: how far the bucket came, and the encoded keys of the rows that changed.

    Encoded keys hold no space. An entry without keys begins a stream.
    """
    told = (POSITION, position.to_json().encode(), KEYS, " ".join(keys).encode())
    return (b"XADD", stream, b"MAXLEN", b"~", b"%d" % most, b"*", *told)


class Recently:
    """`Changes` in Redis' words."""

    def __init__(self, asked: Changes) -> None:
        self._asked = asked
        self.commands: list[Command] = [ask_live(asked.generation)]
        for bucket, id_ in asked.ids.items():
            keys = BucketKeys(asked.generation, bucket)
            self.commands += (("HGET", keys.mark, POSITION), self._page(keys.changes, id_))

    def answer(self, replies: Sequence[Any]) -> Recent:
        """What the replies say."""
        found = dict(zip(self._asked.ids, zip(replies[1::2], replies[2::2], strict=True), strict=True))
        return Recent(
            live_in(replies[0]),
            {bucket: Position.from_json(position) for bucket, (position, _) in found.items() if position is not None},
            {bucket: tuple(map(_changed, entries)) for bucket, (_, entries) in found.items()},
        )

    def _page(self, stream: bytes, id_: str) -> Command:
        if self._asked.backwards:
            return ("XREVRANGE", stream, f"({id_}" if id_ else "+", "-", "COUNT", self._asked.limit)
        return ("XRANGE", stream, id_, "+", "COUNT", self._asked.limit)


def _changed(entry: Sequence[Any]) -> Changed:
    id_, fields = entry[0], hash_of(entry[1])
    return Changed(id_.decode(), Position.from_json(fields[POSITION]), tuple(fields[KEYS].decode().split()))
