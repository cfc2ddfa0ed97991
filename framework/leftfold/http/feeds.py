"""Feeds: the changes of a view or the committed events of a category, read once for all listeners."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple, Protocol

from pydantic_core import to_json

from leftfold.errors import LeftfoldError
from leftfold.http.problems import Problem, ProblemError, problem_of, refusal
from leftfold.http.routes import token_of
from leftfold.model.position import Position

__all__ = ["Feed", "Frame", "Frames", "Source", "frame", "id_line"]

_MOST_FRAMES, _MOST_BYTES = 10_000, 16_777_216
"""What a feed keeps for slow listeners, and for those who come back."""
_WRITE_BYTES, _MOST_SHARED = 65_536, 32  # of one write; writes that are kept for all listeners who stand at its start
_ROUND_SECONDS = 0.25
"""How long a feed waits for news before it looks whether listeners want to join."""
_PACE_SECONDS = 0.02
"""The least time between two rounds: under load many frames leave in one write."""
_SILENCE_SECONDS = 15.0
"""How often a listener is sent its position when there is no news, which also shows that the connection works."""
_LINGER_SECONDS = 10.0
"""How long a feed without listeners continues, for those who come back."""
_CATCHING_UP = 16
"""Listeners that catch up at once; each has a source of its own until it has joined."""
_JOIN_SECONDS, _QUEUE_SECONDS, _TURN_SECONDS = 1.0, 20.0, 30.0
_NEXT = refusal(503, "others wait to catch up; come back with the last id, and nothing is missed").problem
_AHEAD = refusal(503, "what this listener has seen is not reached here yet; come back with the last id").problem
_ENDS = refusal(503, "the gateway ends; come back with the last id, and nothing is missed").problem


class Frame(NamedTuple):
    """One server-sent event: the key and type that listeners choose by, the position behind it, and its bytes.

    Its place is just behind it in its own partition; None where it may come twice.
    """

    key: str
    type: str
    position: Position
    data: bytes
    place: Position | None = None

    def behind(self, ahead: Position) -> Frame:
        """The same for a listener that has already got everything up to a position."""
        position = self.position | ahead
        return self._replace(position=position, data=id_line(position) + self.data.partition(b"\n")[2])


class Frames(list[Frame]):
    """Frames that are written at once; listeners share what is made of them."""

    @cached_property
    def data(self) -> bytes:
        """The bytes of all."""
        return b"".join(one.data for one in self)

    @cached_property
    def keys(self) -> frozenset[str]:
        """The keys that occur."""
        return frozenset(one.key for one in self)

    def chosen(self, keys: frozenset[str], types: frozenset[str]) -> bytes:
        """The bytes of those with one of some keys and one of some types; an empty set chooses all."""
        if not keys and not types:
            return self.data
        if keys and self.keys.isdisjoint(keys):
            return b""
        return b"".join(one.data for one in self if (not keys or one.key in keys) and (not types or one.type in types))


class Source(Protocol):
    """What a feed reads: frames in the order of each key, from a position on."""

    @property
    def position(self) -> Position:
        """Up to where frames were returned."""

    async def read(self, timeout: float) -> list[Frame]:
        """The next frames; none when the timeout, in seconds, passes before."""

    async def close(self) -> None:
        """Ends it; once more does nothing."""


class _Joining(NamedTuple):
    """A listener that has caught up: its source, the number that it joins at (None = not yet), and its last frames."""

    source: Source
    done: asyncio.Future[tuple[int | None, list[Frame]]]


class Feed:
    """One reading of a view or log, whose frames all listeners share.

    A listener without a position begins at the present. One with a position continues in the frames that are kept when
    a frame ended there. Else it reads by a source of its own until it has reached the feed, and joins between two reads
    of the feed, so that it never gets an older row after a newer one.

    Args:
        open_source: a source behind a position, or from now on.
        queue_seconds: how long a listener waits to catch up while many others do: after a restart all come back.
        turn_seconds: how long a listener catches up while others wait to; then it has to come back.
        silence_seconds: how long there is no news before listeners are sent their position.
    """

    def __init__(
        self,
        open_source: Callable[[Position | None], Awaitable[Source]],
        *,
        queue_seconds: float = _QUEUE_SECONDS,
        turn_seconds: float = _TURN_SECONDS,
        silence_seconds: float = _SILENCE_SECONDS,
    ) -> None:
        self._open = open_source
        self._queue_seconds, self._turn_seconds, self._silence_seconds = queue_seconds, turn_seconds, silence_seconds
        self._task: asyncio.Task[None] | None = None
        self._begun: asyncio.Future[None] | None = None
        self._catching_up, self._queued = asyncio.Semaphore(_CATCHING_UP), 0
        self._frames: deque[Frame] = deque()
        self._first, self._bytes = 0, 0
        self._shared: dict[int, Frames] = {}
        """The frames that listeners write next, by the number of the first."""
        self._places: OrderedDict[str, int] = OrderedDict()
        """The number of the frame behind each position."""
        self._position = Position()
        self._listening: dict[asyncio.Event, None] = {}
        self._joining: list[_Joining] = []
        self._failure: Problem | None = None
        self._closed = False

    async def listen(
        self, after: Position | None, *, from_start: bool = False
    ) -> AsyncGenerator[tuple[Position, Frames], None]:
        """The frames behind a position, or from now on, with the position behind them.

        The first is empty; so is one now and then while there is no news. Partitions that `after` does not name begin
        at the present.

        Raises:
            ChangesNotKept: the frames do not reach back to the position. LeftfoldError: nothing can be read.
            ProblemError: the listener is too slow, too many listeners catch up, or the feed has ended.
        """
        news = asyncio.Event()
        self._listening[news] = None
        try:
            await self._begin()
            start, number, ahead, missed = self._position, self._end, Position(), 0
            if after is not None or from_start:
                start = _completed(after or Position(), self._position, from_start=from_start)
                number = self._places.get(token_of(start), -1)
            if number < self._first:
                async with aclosing(self._catch_up(start)) as caught_up:
                    async for ahead, frames, number in caught_up:  # noqa: B007  # used behind it
                        missed += len(frames)
                        yield ahead, Frames(frames)
                if not missed and start == self._position:  # the next one that begins here misses nothing either
                    self._places.setdefault(token_of(start), number)
            else:
                yield start, Frames()
            while True:
                news.clear()
                if number < self._end:
                    found = self._from(number)
                    number += len(found)
                    wanted = _behind(ahead, found)
                    ahead = Position() if found[-1].position.covers(ahead) else ahead
                    if wanted:
                        yield wanted[-1].position, wanted
                elif self._failure is not None:
                    raise ProblemError(self._failure)
                else:
                    await news.wait()
                    if number == self._end and self._failure is None:
                        yield self._position | ahead, Frames()
        finally:
            del self._listening[news]

    async def close(self) -> None:
        """Ends the feed, and so all who listen."""
        self._closed = True  # before Python 3.12 `wait_for` may swallow a cancellation
        if (task := self._task) is not None:
            task.cancel()
            await asyncio.wait([task])  # an error of its source must not end the shutdown of the gateway

    def _from(self, number: int) -> Frames:
        """The kept frames from a number on, as many as are written at once. Raises ProblemError: they are not kept."""
        if number < self._first:
            raise refusal(
                429, f"this listener is {self._first - number:,} events or more behind what is kept for slow ones; "
                "come back with the last id, and nothing is missed",
            )  # fmt: skip
        if (shared := self._shared.get(number)) is not None:
            return shared
        found, size = Frames(), 0
        for one in islice(self._frames, number - self._first, None):
            found.append(one)
            size += len(one.data)
            if size > _WRITE_BYTES:
                break
        if len(self._shared) >= _MOST_SHARED:
            self._shared.clear()
        self._shared[number] = found
        return found

    @property
    def _end(self) -> int:  # the number of the next frame
        return self._first + len(self._frames)

    async def _begin(self) -> None:
        """Begins to read unless it does already."""
        if self._closed:
            raise ProblemError(_ENDS)
        if self._task is None:
            self._failure = None
            self._first = self._end + 1  # a listener of the reading before has missed what came between
            self._frames.clear()
            self._shared.clear()
            self._places.clear()
            self._bytes = 0
            self._begun = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(self._begun))
        if self._begun is not None:
            await asyncio.shield(self._begun)

    async def _run(self, begun: asyncio.Future[None]) -> None:
        source: Source | None = None
        failure = _ENDS
        try:
            source = await self._open(None)
            self._position = source.position  # and no place: rows that changed again at it are in none of the frames
            begun.set_result(None)
            await self._read(source)
        except Exception as error:
            failure = problem_of(error)
            if not begun.done():
                begun.set_exception(error)
            if not isinstance(error, LeftfoldError):
                raise
        finally:
            self._failure, self._task = failure, None
            waiting: list[asyncio.Future[Any]] = [begun, *(joining.done for joining in self._joining)]
            for future in waiting:
                if not future.done():
                    future.set_exception(ProblemError(failure))
            self._joining.clear()
            self._wake()
            if source is not None:
                await source.close()

    async def _read(self, source: Source) -> None:
        """Reads until there has been no listener for a while."""
        alone, spoke = 0.0, time.monotonic()
        while alone < _LINGER_SECONDS and not self._closed:
            joining = tuple(self._joining)
            await asyncio.gather(*map(self._join, joining))
            del self._joining[: len(joining)]
            found = await source.read(_ROUND_SECONDS)
            alone = 0.0 if self._listening else alone + _ROUND_SECONDS
            self._keep(found)
            self._reach(source.position)
            if found or time.monotonic() - spoke >= self._silence_seconds:
                spoke = time.monotonic()
                self._wake()
            if found:
                await asyncio.sleep(_PACE_SECONDS)

    def _keep(self, found: Sequence[Frame]) -> None:
        if found:
            self._shared.clear()  # the last of them may have been followed by none
        for frame in found:
            self._frames.append(frame)
            self._bytes += len(frame.data)
            self._reach(frame.position)
        while len(self._frames) > max(len(found), 1) and (
            len(self._frames) > _MOST_FRAMES or self._bytes > _MOST_BYTES
        ):
            self._bytes -= len(self._frames.popleft().data)
            self._first += 1

    def _reach(self, position: Position) -> None:
        """Notes that the frames up to here end at a position; where several end there, the first counts."""
        if position == self._position:
            return
        self._position = position
        self._places[token_of(position)] = self._end
        if len(self._places) > _MOST_FRAMES:
            self._places.popitem(last=False)

    def _wake(self) -> None:
        for news in self._listening:
            news.set()

    async def _catch_up(self, after: Position) -> AsyncGenerator[tuple[Position, Sequence[Frame], int], None]:
        """The frames from a position to the feed's, each time with the number of the feed's next frame."""
        self._queued += 1
        try:
            async with asyncio.timeout(self._queue_seconds):
                await self._catching_up.acquire()
        except TimeoutError as error:
            raise refusal(503, f"{_CATCHING_UP} listeners catch up already; come again in a second") from error
        finally:
            self._queued -= 1
        moved = began = time.monotonic()
        try:
            source, number = await self._open(after), None
            try:
                yield after, (), 0
                while number is None:
                    is_level = False
                    while not is_level:
                        if self._queued and time.monotonic() - began >= self._turn_seconds:
                            raise ProblemError(_NEXT)
                        before = source.position
                        found, is_level = await self._next(source)
                        if found:
                            yield source.position, found, 0
                        elif is_level or self._task is None:
                            break
                        elif source.position == before and time.monotonic() - moved >= self._turn_seconds:
                            raise ProblemError(_AHEAD)  # it is not reached itself, which holds up no other one
                        moved = moved if source.position == before else time.monotonic()
                    await self._begin()  # the feed may have failed, and nothing else would begin it
                    if self._failure is not None:
                        raise ProblemError(self._failure)
                    joining = _Joining(source, asyncio.get_running_loop().create_future())
                    self._joining.append(joining)
                    number, found = await joining.done
                    if number is None:
                        yield source.position, found, 0
            finally:
                await source.close()
        finally:
            self._catching_up.release()
        yield source.position, found, number

    async def _next(self, source: Source) -> tuple[list[Frame], bool]:
        """The next frames of a source, and whether it is level with the feed and has left none that may come twice."""
        position = self._position  # a feed that is busy is always a little further
        found = await source.read(0.0 if source.position.covers(position) else _ROUND_SECONDS)
        return found, source.position.covers(position) and not (found and found[-1].place is None)

    async def _join(self, joining: _Joining) -> None:
        """Reads what a listener lacks, while the feed does not read; it has to come again when that takes long."""
        (source, done), found, is_level = joining, list[Frame](), False
        deadline = time.monotonic() + _JOIN_SECONDS
        try:
            while not (done.done() or is_level) and time.monotonic() < deadline:
                more, is_level = await self._next(source)
                found += more
        except Exception as error:  # noqa: BLE001  # it belongs to this listener; the feed continues
            if not done.done():
                done.set_exception(error)
        if done.cancelled():
            await source.close()  # its listener closed it too, but perhaps before this read began to wait
        elif not done.done():
            done.set_result((self._end if is_level else None, found))


def id_line(position: Position) -> bytes:
    """The line that gives an event its id, from which a listener continues."""
    return b"id: " + token_of(position).encode() + b"\n"


def frame(key: str, type_: str, position: Position, data: Any, place: Position | None = None) -> Frame:
    """A server-sent event with a JSON body."""
    return Frame(key, type_, position, id_line(position) + b"data: " + to_json(data) + b"\n\n", place)


def _completed(after: Position, present: Position, *, from_start: bool) -> Position:
    """A position that names every partition: where it did not, the present, or the start."""
    named = after.by_partition()
    return Position(
        {
            topic: {p: named.get((topic, p), 0 if from_start else offset) for p, offset in partitions.items()}
            for topic, partitions in present.offsets.items()
        }
    )


def _behind(ahead: Position, found: Frames) -> Frames:
    """The frames that a listener lacks which has read alone up to a position, further than the feed perhaps."""
    if not ahead.offsets:
        return found
    return Frames(
        one if one.position.covers(ahead) else one.behind(ahead)
        for one in found
        if one.place is None or not ahead.covers(one.place)
    )
