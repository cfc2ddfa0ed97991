"""Feeds: one reading that all listeners share, how they join it, and what becomes of slow ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import pytest
from fastapi.responses import StreamingResponse
from starlette.types import Message

from leftfold.errors import ChangesNotKept, InfrastructureError
from leftfold.http.feeds import _CATCHING_UP, _MOST_FRAMES, Feed, Frame, Frames, frame
from leftfold.http.problems import ProblemError
from leftfold.http.routes import ResponseInParts, token_of
from leftfold.http.server_sent_events import _listening
from leftfold.model.position import Position

Sent = dict[str, Any]


class Numbers:
    """A source of rows that count upwards: `make` writes one; a reading shows the newest value of each key."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []
        self.written = asyncio.Event()
        self.failure: Exception | None = None
        self.opened = 0
        self.kept_from = 0
        self.is_held = False
        """Whether the reading that was opened first finds nothing."""
        self.others_are_held = False
        self.held_reads = 0

    def make(self, key: str, value: int) -> None:
        self.log.append((key, value))
        self.written.set()

    async def open(self, after: Position | None) -> Reading:
        if self.failure is not None:
            raise self.failure
        start = len(self.log) if after is None else after.next_offset("n", 0)
        if start < self.kept_from:
            raise ChangesNotKept("too old")
        self.opened += 1
        return Reading(self, start, is_first=self.opened == 1)


class Reading:
    """One reading of the numbers."""

    def __init__(self, numbers: Numbers, start: int, *, is_first: bool) -> None:
        self.numbers, self.next, self.is_first = numbers, start, is_first

    @property
    def position(self) -> Position:
        return Position.at("n", 0, self.next)

    async def read(self, timeout: float) -> list[Frame]:
        if self.next == len(self.numbers.log) and timeout:
            self.numbers.written.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self.numbers.written.wait()
        if self.numbers.failure is not None:
            raise self.numbers.failure
        if self.numbers.is_held if self.is_first else self.numbers.others_are_held:
            self.numbers.held_reads += 1
            await asyncio.sleep(min(timeout, 0.01))
            return []
        found = []
        while self.next < len(self.numbers.log):
            key, value = self.numbers.log[self.next]
            self.next += 1
            found.append(frame(key, "change", self.position, value, self.position))
        return found

    async def close(self) -> None:
        return None


def values(frames: Any) -> list[int]:
    return [int(one.data.rpartition(b"data: ")[2]) for one in frames]


async def heard(listener: Any, count: int) -> list[int]:
    """The next so many values of a listener."""
    found: list[int] = []
    while len(found) < count:
        _, frames = await anext(listener)
        found += values(frames)
    return found


def fed(calls: Callable[[Feed, Numbers], Awaitable[None]], **options: float) -> None:
    async def run() -> None:
        numbers = Numbers()
        feed = Feed(numbers.open, **options)
        async with asyncio.timeout(240):
            await calls(feed, numbers)
            await feed.close()

    asyncio.run(run())


def test_all_listeners_share_one_reading_and_one_who_comes_back_joins_it() -> None:
    async def calls(feed: Feed, numbers: Numbers) -> None:
        many = [feed.listen(None) for _ in range(50)]
        for listener in many:
            await anext(listener)
        for value in range(5):
            numbers.make("k", value)
        assert [await heard(listener, 5) for listener in many] == [list(range(5))] * 50
        assert numbers.opened == 1
        back = feed.listen(Position.at("n", 0, 3))
        assert await heard(back, 2) == [3, 4]
        assert numbers.opened == 1  # in the frames that are kept
        later = feed.listen(Position.at("n", 0, 0))
        numbers.make("k", 5)
        assert await heard(later, 6) == list(range(6))

    fed(calls)


def test_a_listener_from_before_the_feed_reads_alone_until_it_joins() -> None:
    async def calls(feed: Feed, numbers: Numbers) -> None:
        for value in range(1000):
            numbers.make("k", value)
        listener = feed.listen(Position.at("n", 0, 10))
        assert await heard(listener, 990) == list(range(10, 1000))
        assert numbers.opened == 2
        for value in range(1000, 1010):
            numbers.make("k", value)
            assert await heard(listener, 1) == [value]
        assert numbers.opened == 2

    fed(calls)


def test_a_listener_that_has_read_further_than_the_feed_gets_nothing_twice() -> None:
    async def calls(feed: Feed, numbers: Numbers) -> None:
        numbers.make("k", 0)
        first = feed.listen(None)
        await anext(first)
        numbers.is_held = True
        for value in range(1, 6):
            numbers.make("k", value)
        ahead = feed.listen(Position.at("n", 0, 0))
        assert await heard(ahead, 6) == list(range(6))
        news = asyncio.create_task(anext(ahead))
        await asyncio.sleep(0)
        numbers.make("k", 6)
        numbers.is_held = False
        assert await heard(first, 6) == list(range(1, 7))
        position, frames = await news
        while not frames:
            position, frames = await anext(ahead)
        assert (values(frames), position.next_offset("n", 0)) == ([6], 7)
        assert frames[0].data.startswith(b"id: " + token_of(position).encode())

    fed(calls)


def test_a_listener_that_is_too_slow_is_refused_and_misses_nothing_when_it_comes_back() -> None:
    async def calls(feed: Feed, numbers: Numbers) -> None:
        slow, fast = feed.listen(None), feed.listen(None)
        position, _ = await anext(slow)
        await anext(fast)
        count = _MOST_FRAMES + 100
        for value in range(count):
            numbers.make("k", value)
            if value % 1000 == 0:
                await heard(fast, 1 if value == 0 else 1000)
        await heard(fast, count - 1 - (count - 1) // 1000 * 1000)
        with pytest.raises(ProblemError) as error:
            await anext(slow)
        assert error.value.problem.status == 429
        assert "101 events or more" in error.value.problem.detail or "100 events" in error.value.problem.detail
        assert await heard(feed.listen(position), count) == list(range(count))

    fed(calls)


@pytest.mark.parametrize(("left", "kind"), [(3600.0, b"data: "), (-1.0, b"event: problem")], ids=["", "expired"])
def test_a_listener_whose_token_expires_has_to_come_back_with_another_one(left: float, kind: bytes) -> None:
    async def calls(feed: Feed, numbers: Numbers) -> None:
        body: Any = aiter((await _listening(feed, None, until=time.time() + left)).body_iterator)
        assert b"retry" in bytes(await anext(body))
        numbers.make("k", 1)
        news = bytes(await anext(body))
        assert kind in news
        assert (b"401" in news) is (left < 0)

    fed(calls)


@pytest.mark.parametrize("kind", [ResponseInParts, StreamingResponse], ids=["", "twin"])
def test_a_listener_ends_with_its_answer_also_in_the_middle_of_a_write(kind: type[StreamingResponse]) -> None:
    """The twin leaves it to the garbage collector, and with it a place among those who catch up."""

    async def calls(feed: Feed, numbers: Numbers) -> None:
        answer = await _listening(feed, None)

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                raise OSError("the connection has ended")

        with pytest.raises(OSError, match="the connection has ended"):
            await kind.stream_response(answer, send)
        assert (not feed._listening) is (kind is ResponseInParts)
        await cast("Any", answer.body_iterator).aclose()

    fed(calls)


def test_a_failure_ends_every_listener_and_the_next_one_begins_a_new_reading() -> None:
    async def calls(feed: Feed, numbers: Numbers) -> None:
        listener = feed.listen(None)
        position, _ = await anext(listener)
        numbers.failure = InfrastructureError("redis does not answer")
        with pytest.raises(ProblemError, match="redis does not answer"):
            await anext(listener)
        with pytest.raises(InfrastructureError):
            await anext(feed.listen(None))
        numbers.failure = None
        numbers.make("k", 7)
        assert await heard(feed.listen(position), 1) == [7]

    fed(calls)


def test_a_listener_whose_position_is_no_longer_kept_is_refused_before_it_begins() -> None:
    async def calls(feed: Feed, numbers: Numbers) -> None:
        for value in range(10):
            numbers.make("k", value)
        numbers.kept_from = 5
        with pytest.raises(ChangesNotKept):
            await anext(feed.listen(Position.at("n", 0, 3)))
        assert await heard(feed.listen(Position.at("n", 0, 5)), 5) == list(range(5, 10))

    fed(calls)


def test_only_so_many_listeners_catch_up_at_once() -> None:
    async def calls(feed: Feed, numbers: Numbers) -> None:
        numbers.make("k", 0)
        start = Position.at("n", 0, 0)
        catching_up = [feed.listen(start) for _ in range(_CATCHING_UP)]
        for listener in catching_up:
            await anext(listener)
        with pytest.raises(ProblemError) as error:
            await anext(feed.listen(start))
        assert error.value.problem.status == 503
        for listener in catching_up:
            await listener.aclose()
        assert await heard(feed.listen(start), 1) == [0]

    fed(calls, queue_seconds=0.0)


def test_a_listener_waits_for_its_turn_to_catch_up() -> None:
    async def calls(feed: Feed, numbers: Numbers) -> None:
        numbers.make("k", 0)
        start = Position.at("n", 0, 0)
        catching_up = [feed.listen(start) for _ in range(_CATCHING_UP)]
        for listener in catching_up:
            await anext(listener)
        later = asyncio.create_task(heard(feed.listen(start), 1))
        await asyncio.sleep(0)
        assert await heard(catching_up[0], 1) == [0]
        numbers.make("k", 1)
        assert await heard(catching_up[0], 1) == [1]  # it has joined
        assert (await later)[0] == 0

    fed(calls)


def test_a_listener_that_catches_up_for_long_makes_room_for_others_and_misses_nothing() -> None:
    async def calls(feed: Feed, numbers: Numbers) -> None:
        for value in range(3):
            numbers.make("k", value)
        start = Position.at("n", 0, 0)
        long = [feed.listen(start) for _ in range(_CATCHING_UP)]
        positions = [(await anext(listener))[0] for listener in long]
        later = asyncio.create_task(heard(feed.listen(start), 3))
        await asyncio.sleep(0)
        with pytest.raises(ProblemError, match="others wait to catch up"):
            await anext(long[0])
        assert await later == [0, 1, 2]
        for again in (feed.listen(positions[0]), long[1]):  # no others wait
            assert await heard(again, 3) == [0, 1, 2]

    fed(calls, turn_seconds=0.0)


def test_a_listener_that_catches_up_while_the_feed_fails_joins_the_next_one() -> None:
    async def calls(feed: Feed, numbers: Numbers) -> None:
        numbers.make("k", 0)
        first = feed.listen(None)
        await anext(first)
        late = feed.listen(Position.at("n", 0, 0))
        await anext(late)
        numbers.failure = InfrastructureError("redis does not answer")
        with pytest.raises(ProblemError, match="redis does not answer"):
            await anext(first)
        numbers.failure = None
        assert await heard(late, 1) == [0]
        numbers.make("k", 1)
        assert await heard(late, 1) == [1]

    fed(calls)


def test_a_listener_that_is_ahead_of_what_is_read_holds_up_no_other_one() -> None:
    """Its place in another partition is never reached: a token may name any."""

    async def calls(feed: Feed, numbers: Numbers) -> None:
        numbers.make("k", 0)
        other, ahead = feed.listen(None), feed.listen(Position.at("n", 0, 0))
        await anext(other)
        await anext(ahead)
        numbers.others_are_held = True  # as a view whose rows are older than what its reader has seen
        waiting = asyncio.create_task(anext(ahead))
        for value in range(1, 6):
            numbers.make("k", value)
            assert await heard(other, 1) == [value]
            assert not feed._joining, "the feed reads for no other"
        with pytest.raises(ProblemError, match="is not reached here yet"):
            await waiting

    fed(calls, turn_seconds=0.5)


def test_a_feed_that_ends_while_a_listener_joins_ends_the_listener() -> None:
    async def calls(feed: Feed, numbers: Numbers) -> None:
        numbers.make("k", 0)
        await anext(feed.listen(None))
        late = feed.listen(Position.at("n", 0, 0))
        await anext(late)
        assert await heard(late, 1) == [0]
        numbers.others_are_held = True
        joining = asyncio.create_task(anext(late))
        numbers.make("k", 1)
        while not numbers.held_reads:  # noqa: ASYNC110  # the feed reads for it, or it does
            await asyncio.sleep(0)
        await feed.close()
        with pytest.raises(ProblemError, match="the gateway ends"):
            await joining

    fed(calls)


def test_a_position_is_never_sent_before_the_frames_that_end_there() -> None:
    """News may come in the moment in which a listener has waited long enough for them."""

    async def calls(feed: Feed, numbers: Numbers) -> None:
        listener = feed.listen(None)
        for _ in range(10):  # until the feed waits for news
            await anext(listener)
        for value in range(10):
            numbers.make("k", value)
            position, frames = await anext(listener)
            while not frames:
                assert position.next_offset("n", 0) == value
                position, frames = await anext(listener)
            assert (values(frames), position.next_offset("n", 0)) == ([value], value + 1)

    fed(calls, silence_seconds=0.0)


def test_listeners_at_one_place_share_what_is_written() -> None:
    async def calls(feed: Feed, numbers: Numbers) -> None:
        listeners = [feed.listen(None) for _ in range(3)]
        for listener in listeners:
            await anext(listener)
        for value in range(3):
            numbers.make(f"k{value}", value)
            first, *others = [(await anext(listener))[1] for listener in listeners]
            assert values(first) == [value], "and not what was shared before"
            assert all(other is first for other in others)

    fed(calls)


def test_a_listener_chooses_by_key_and_type() -> None:
    found = Frames(frame(key, type_, Position(), key + type_) for key in "ab" for type_ in "xy")

    def chosen(keys: str, types: str) -> list[str]:
        lines = found.chosen(frozenset(keys), frozenset(types)).decode().splitlines()
        return [line.removeprefix("data: ").strip('"') for line in lines if line.startswith("data: ")]

    assert chosen("", "") == ["ax", "ay", "bx", "by"]
    assert chosen("b", "") == ["bx", "by"]
    assert chosen("ab", "y") == ["ay", "by"]
    assert chosen("", "x") == ["ax", "bx"]
    assert chosen("c", "x") == []
