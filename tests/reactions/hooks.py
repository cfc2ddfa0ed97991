"""Reactions that post to a receiver, which may tell them to die on the spot; processes of tests run them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from http.client import HTTPConnection
from urllib.parse import urlsplit
from uuid import uuid4

from leftfold import Delivery, Reaction
from tests.domains.visits import Paid, app_with

__all__ = ["CAREFUL", "FORGETFUL", "NAMES", "app"]

CAREFUL = ("before", "after", "parking")
"""Where each of them is killed."""
FORGETFUL = "forgetful"
"""Sends other keys each time, and is killed as `after` is."""
NAMES = (*CAREFUL, FORGETFUL)


def post(path: str, delivery: Delivery, key: str) -> None:
    """Tells the receiver, and dies if it says so."""
    connection = HTTPConnection(urlsplit(os.environ["TESTS_HOOKS_URL"]).netloc, timeout=240.0)
    try:
        headers = {"Idempotency-Key": key, "Event": delivery.id}
        connection.request("POST", path, b"", headers)
        answer = connection.getresponse()
        if answer.read() == b"die":
            os.kill(os.getpid(), signal.SIGKILL)
        if answer.status != 200:
            raise OSError(f"the receiver says {answer.status}")
    finally:
        connection.close()


def act_of(name: str) -> Callable[[Paid, Delivery], None]:
    """What a reaction does: says that it is about to, does it, and says that it has."""

    def act(event: Paid, delivery: Delivery) -> None:
        key = str(uuid4()) if name == FORGETFUL else delivery.idempotency_key
        post(f"/{name}/before", delivery, key)
        post(f"/{name}/effect", delivery, key)

    return act


app = app_with(
    *(Reaction(name, events=Paid, act=act_of(name), attempts=2, backoff=0.05, since="start") for name in NAMES)
)
