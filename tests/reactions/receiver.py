"""A receiver of webhooks that remembers idempotency keys, and tells senders when to die."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.listening import Request, listening

__all__ = ["Receiver", "receiving"]

Judge = Callable[[str, str, int], str]
"""Says `ok`, `die` or `refuse` to a request: (path, event id, how many there were of this path, with this one)."""


class Receiver:
    """What has arrived, by path."""

    def __init__(self, judge: Judge) -> None:
        self.url = ""
        self.effects: defaultdict[str, dict[str, str]] = defaultdict(dict)
        """By path the event of each key: what a receiver that remembers keys has done."""
        self.posts: Counter[str] = Counter()
        self.deaths: Counter[str] = Counter()
        self._judge, self._lock = judge, threading.Lock()

    def take(self, path: str, key: str, event: str) -> str:
        """Has the effect, unless the key is known or the request refused; the answer."""
        with self._lock:
            self.posts[path] += 1
            verdict = self._judge(path, event, self.posts[path])
            if verdict == "die":
                self.deaths[path] += 1
            if verdict != "refuse":
                self.effects[path].setdefault(key, event)
            return verdict


@contextmanager
def receiving(judge: Judge = lambda path, event, number: "ok") -> Iterator[Receiver]:
    """A receiver that listens at `url` while the block runs."""
    receiver = Receiver(judge)

    def answer(request: Request) -> tuple[int, bytes]:
        verdict = receiver.take(request.path, request.headers["Idempotency-Key"], request.headers["Event"])
        return 503 if verdict == "refuse" else 200, verdict.encode()

    with listening(answer) as receiver.url:
        yield receiver
