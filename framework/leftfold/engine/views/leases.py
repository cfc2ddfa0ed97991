"""Leases on long work in a view store: members of a group that must renew themselves, and the attempt of a rebuild."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from leftfold.engine.views.generations import change
from leftfold.errors import Fenced, InfrastructureError, LeftfoldError
from leftfold.ports.flush import Generation, Registry
from leftfold.ports.protocols import ViewStore

__all__ = ["check_alone", "check_attempt", "exclusive_lease", "is_of_attempt", "members", "taken_over"]


_LEASE, _SHOWN_EVERY = 15.0, 3.0


@contextmanager
def exclusive_lease(store: ViewStore, group: str, what: str) -> Iterator[str]:
    """Keeps others out of a group while the block runs, which gets the name under which it is there.

    A process that dies is forgotten after 15 s; one that is paused, too, and it may find others when it wakes.

    Args:
        what: is named to those who are kept out, such as `view household_spend is being rebuilt`.

    Raises:
        InfrastructureError: somebody else is at work; two that begin at one moment may both be told so.
    """
    me = f"{socket.gethostname()} (process {os.getpid()}, {secrets.token_hex(2)})"
    try:
        check_alone(store, group, me, what)
    except InfrastructureError:
        with suppress(LeftfoldError):
            store.heartbeat([group], me, 0.0)
        raise
    done = threading.Event()

    def show() -> None:
        while not done.wait(_SHOWN_EVERY):
            with suppress(LeftfoldError):
                store.heartbeat([group], me, _LEASE)

    shown = threading.Thread(target=show, name=group, daemon=True)
    shown.start()
    try:
        yield me
    finally:
        done.set()
        shown.join()
        with suppress(LeftfoldError):
            store.heartbeat([group], me, 0.0)


def check_alone(store: ViewStore, group: str, me: str, what: str) -> None:
    """Shows a member of a group and raises InfrastructureError when there is another one."""
    others = [member for member in store.heartbeat([group], me, _LEASE)[group] if member != me]
    if others:
        raise InfrastructureError(
            f"{what} already by {others[0]}; wait for it, or end that process: what it has done is gone on with "
            f"{_LEASE:g} s later"
        )


def members(store: ViewStore, group: str) -> frozenset[str]:
    """Who is at work in a group, by the names that `exclusive_lease` gives."""
    return frozenset(store.heartbeat([group], "", 0.0)[group])


def taken_over(store: ViewStore, generation: Generation, attempt: str) -> Generation:
    """A generation that another attempt left, as one of this attempt from here on.

    Raises:
        Fenced: it was removed or taken over meanwhile.
    """

    def take_over(registry: Registry) -> Registry:
        check_attempt(registry, generation)
        return registry.with_generation(replace(registry.generations[generation.id], attempt=attempt))

    change(store, generation.view, take_over)
    return replace(generation, attempt=attempt)


def is_of_attempt(registry: Registry, generation: Generation) -> bool:
    """Whether a generation still belongs to the attempt that it belonged to when it was read."""
    now = registry.generations.get(generation.id)
    return now is not None and now.attempt == generation.attempt


def check_attempt(registry: Registry, generation: Generation) -> None:
    """Raises Fenced when a generation was removed, or belongs to another attempt than when it was read."""
    if generation.id not in registry.generations:
        raise Fenced(f"generation {generation.id} of view {generation.view} was removed by another process")
    if not is_of_attempt(registry, generation):
        by = registry.generations[generation.id].attempt
        raise Fenced(
            f"generation {generation.id} of view {generation.view} was taken over by {by} while this rebuild did not "
            f"show itself; wait for that one"
        )
