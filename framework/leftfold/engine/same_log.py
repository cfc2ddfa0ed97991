"""Whether a generation was folded from the topics that are there now, by the ids that a cluster gives them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Protocol

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.flush import Generation

__all__ = ["Identities", "check_log", "known_ids", "other_log"]

_FRESH_SECONDS = 5.0
"""How often a process that follows a log asks for the ids of its topics."""
_AGAIN_SECONDS = 30.0
"""How long it goes by what it knows when the log did not answer, since each question may take seconds then."""


class _Log(Protocol):
    def identities(self, topics: Iterable[str]) -> Mapping[str, str]: ...


def known_ids(log: _Log, topics: Iterable[str]) -> dict[str, str]:
    """The ids of topics; those that have none are left out."""
    return {topic: id_ for topic, id_ in log.identities(topics).items() if id_}


def other_log(generation: Generation, ids: Mapping[str, str]) -> str:
    """Why a generation does not belong to topics of these ids, and what to type; '' when it does, or is unknown to."""
    for topic, before in generation.ids.items():
        if ids.get(topic, before) != before:
            return (
                f"generation {generation.id} of view {generation.view} was folded from another {topic} (its id was "
                f"{before}, and is {ids[topic]}): it was deleted and made again, or is in another cluster; build it "
                f"from this one: leftfold rebuild {generation.view}"
            )
    return ""


def check_log(generation: Generation, ids: Mapping[str, str]) -> None:
    """Checks that a generation belongs to topics of these ids.

    Raises:
        ConfigurationError: it was folded from others.
    """
    if why := other_log(generation, ids):
        raise ConfigurationError(why)


class Identities:
    """The ids of a log's topics, asked for again every few seconds."""

    def __init__(self, log: _Log) -> None:
        self._log, self._found, self._due = log, dict[str, str](), float("-inf")
        self._known: set[str] = set()

    def of(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids of some topics; those of before while the log does not answer.

        Raises:
            InfrastructureError: the log does not answer, and some of these topics were never asked for.
        """
        wanted = set(topics)
        is_known = wanted <= self._known
        if not is_known or time.monotonic() > self._due:
            try:
                self._found = known_ids(self._log, sorted(self._known | wanted))
                self._known |= wanted
                self._due = time.monotonic() + _FRESH_SECONDS
            except InfrastructureError:
                if not is_known:
                    raise
                self._due = time.monotonic() + _AGAIN_SECONDS
        return {topic: id_ for topic, id_ in self._found.items() if topic in wanted}
