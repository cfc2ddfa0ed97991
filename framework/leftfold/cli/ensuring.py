"""Topics of Apps, made when they are missing, and reactions, begun when they have never run."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress

from leftfold.app import App
from leftfold.cli.trouble import Trouble
from leftfold.connection import ring
from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.kafka.settings import KafkaSettings
from leftfold.logs import Report

__all__ = ["begin_reactions", "ensure_now", "ensure_topics"]


def ensure_topics(apps: Iterable[App], settings: KafkaSettings, stop: threading.Event, report: Report) -> None:
    """Makes what is missing and checks what is there, however long no broker answers or another App is awaited.

    Each makes its own before it asks for those of others, so that they may be given in any order.

    Raises:
        ConfigurationError: a topic is not as the App says.
    """
    trouble, left = Trouble(report, stop), list(apps)
    while left and not stop.is_set():
        refused = _refused(left, settings)
        if len(refused) == len(left):
            trouble.met(next(iter(refused.values())))
        left = [app for app in left if app.name in refused]
    trouble.told("")


def ensure_now(apps: Iterable[App], settings: KafkaSettings) -> None:
    """Makes what is missing and checks what is there, without waiting for a broker or for other Apps.

    Raises:
        ConfigurationError: a topic is not as the App says.
        InfrastructureError: no broker answers, or the App of a topic that is read is none of these and never ran.
    """
    left = list(apps)
    while left:
        refused = _refused(left, settings)
        if len(refused) == len(left):
            raise next(iter(refused.values()))
        left = [app for app in left if app.name in refused]


def _refused(apps: Iterable[App], settings: KafkaSettings) -> dict[str, InfrastructureError]:
    """Why the topics of these Apps are not all there, by App; the others' are."""
    refused: dict[str, InfrastructureError] = {}
    for app in apps:
        try:
            ring("leftfold.kafka.topics").ensure(app, settings)
        except InfrastructureError as error:
            refused[app.name] = error
    return refused


def begin_reactions(app: App, settings: KafkaSettings) -> None:
    """Says of reactions that have never run where they begin, before there is anybody who could write an event.

    What is wrong with one its own part says, again and again, while everything else works.
    """
    for reaction in app.reactions:
        with suppress(InfrastructureError, ConfigurationError):
            ring("leftfold.kafka.beginnings").Beginnings(app, reaction, settings).begin()
