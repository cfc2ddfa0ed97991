"""A partition that a lane holds: its streams, the decoded ones at hand, and the end of its events."""

from __future__ import annotations

from typing import Any, Protocol

from leftfold.ports import StateStore

__all__ = ["Held", "HeldCodec"]


class HeldCodec(Protocol):
    """Reads and writes the records of what is held: streams of a decider, instances of a process."""

    def new(self) -> Any:
        """One that nothing has happened to."""

    def encode(self, stream: Any, /) -> bytes:
        """Its record."""

    def shed(self, stream: Any, excess: int, /) -> int:
        """Drops what is remembered for repeats only, oldest first, until its record is `excess` bytes lighter or
        nothing is left; returns how many.
        """

    def decode(self, value: bytes, seen: float, /) -> Any:
        """The one behind a record. Raises ContractError: it is none of mine."""


class Held:
    """The streams of one partition as committed. `end` is the events end known; `recent` how many stay decoded."""

    def __init__(self, store: StateStore, codec: HeldCodec, *, end: int, recent: int = 2_000) -> None:
        self.store, self.end = store, end
        self._codec, self._most = codec, recent
        self._recent: dict[str, Any] = {}

    def copy_of(self, key: str, now: float) -> Any:
        """The committed stream as a copy that a batch may change; a new one where there is none."""
        stream = self._recent.get(key)
        if stream is not None:
            return stream.copy()
        record = self.store.get(key)
        return self._codec.new() if record is None else self._codec.decode(record, now)

    def commit(self, streams: dict[str, Any], records: list[tuple[str, bytes]]) -> None:
        """Takes over what a committed batch made of the streams."""
        self.store.put(records)
        for key, stream in streams.items():
            self._recent.pop(key, None)
            self._recent[key] = stream
        while len(self._recent) > self._most:
            del self._recent[next(iter(self._recent))]
