"""What is parked is tried again: as many streams at once as the reaction itself takes, each in its order."""

from __future__ import annotations

import threading
from threading import BrokenBarrierError

import pytest

from leftfold import Delivery
from leftfold.kafka.reactions.parked import ParkedEvents, ReactionRetry
from leftfold.kafka.settings import KafkaSettings
from tests.domains.visits import Paid
from tests.reactions.reacting import Post, acting, made, write
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

VISITS = [f"visit-{number}" for number in range(4)]
EACH = 3


@pytest.mark.parametrize("at_once", [len(VISITS), 1], ids=["at once", "one by one"])
def test_streams_are_tried_at_once_and_each_in_its_order(settings: KafkaSettings, at_once: int) -> None:
    """Every act waits until all streams are at the same number; the twin does them one by one."""
    is_mended, together = threading.Event(), threading.Barrier(len(VISITS), timeout=240.0 if at_once > 1 else 1.0)

    def meet(event: Paid, delivery: Delivery) -> None:
        if not is_mended.is_set():
            raise OSError("down")
        together.wait()

    post, name = Post(meet), f"retried-{at_once}"
    app = made(settings, name, post.act, attempts=1, at_once=at_once, timeout=240.0)
    events = ParkedEvents(name, settings)
    with acting(app, name, settings):
        for number in range(1, EACH + 1):
            write(settings, *(Paid(visit=visit, number=number) for visit in VISITS))
        wait_until(lambda: events.count() == EACH * len(VISITS), lambda: f"all to be parked: {events.count()}")
    is_mended.set()
    counts: list[int] = []
    done, parked = ReactionRetry(app, name, settings).run(counts.append)
    if at_once > 1:
        assert (done, parked, counts[-1]) == (EACH * len(VISITS), {}, EACH * len(VISITS))
        assert [post.numbers(visit) for visit in VISITS] == [list(range(1, EACH + 1))] * len(VISITS)
        assert events.count() == 0
    else:
        assert set(parked.values()) == {BrokenBarrierError.__name__}
        assert (done, len(parked), events.count()) == (0, EACH * len(VISITS), EACH * len(VISITS))


def test_one_try_each_also_of_what_hangs_and_what_was_done_is_not_tried_again(settings: KafkaSettings) -> None:
    is_mended, is_over = threading.Event(), threading.Event()

    def hang(event: Paid, delivery: Delivery) -> None:
        if not is_mended.is_set():
            raise OSError("down")
        if event.visit == "hangs":
            assert not is_over.wait(240.0)

    post = Post(hang)
    app = made(settings, "hung", post.act, attempts=2, timeout=4.0)
    events = ParkedEvents("hung", settings)
    with acting(app, "hung", settings):
        write(settings, Paid(visit="hangs"), Paid(visit="good"))
        wait_until(lambda: events.count() == 2, lambda: f"both to be parked: {events.count()}")
    is_mended.set()
    try:
        done, parked = ReactionRetry(app, "hung", settings).run()
        assert (done, list(parked.values())) == (1, ["TimeoutError: no end within 4 s"])
        assert events.count() == 1
        assert ReactionRetry(app, "hung", settings).run().done == 0
        assert post.numbers("good") == [1]
    finally:
        is_over.set()
