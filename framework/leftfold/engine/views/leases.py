"""Leases on long work in a view store: exclusive membership of a group, and the attempt of a rebuild."""

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

__all__ = ["check_attempt", "check_sole_member", "exclusive_lease", "is_of_attempt", "members", "take_over"]


_LEASE, _SHOWN_EVERY = 15.0, 3.0


@contextmanager
def exclusive_lease(store: ViewStore, group: str, what: str) -> Iterator[str]:
    """Holds an exclusive lease on a group while the block runs; yields the name of the lease's holder.

    The lease of a process that dies or is paused expires after 15 s; a process that resumes later may find another
    holder.

    Args:
        what: the work, for the error that other processes get, such as `view household_spend is being rebuilt`.

    Raises:
        InfrastructureError: another process holds the lease; two that begin at the same moment may both get this error.
    """
    me = f"{socket.gethostname()} (process {os.getpid()}, {secrets.token_hex(2)})"
    try:
        check_sole_member(store, group, me, what)
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


def check_sole_member(store: ViewStore, group: str, me: str, what: str) -> None:
    """Sends a heartbeat to a group and raises InfrastructureError when it has another member."""
    others = [member for member in store.heartbeat([group], me, _LEASE)[group] if member != me]
    if others:
        raise InfrastructureError(
            f"{what} already by {others[0]}; wait for it, or end that process: its finished work can be resumed "
            f"{_LEASE:g} s later"
        )


def members(store: ViewStore, group: str) -> frozenset[str]:
    """The members of a group with a valid lease, by the names that `exclusive_lease` gives."""
    return frozenset(store.heartbeat([group], "", 0.0)[group])


def take_over(store: ViewStore, generation: Generation, attempt: str) -> Generation:
    """Transfers a generation that another attempt left to this attempt.

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
            f"generation {generation.id} of view {generation.view} was taken over by {by} while this rebuild sent no "
            f"heartbeat; wait for that one"
        )
