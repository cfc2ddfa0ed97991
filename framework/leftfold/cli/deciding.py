"""The process of one decider: a worker, made again whenever its servers fail it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from leftfold.app import App
from leftfold.cli.trouble import Trouble
from leftfold.errors import Fenced, InfrastructureError
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker import Worker
from leftfold.kafka.workshop import Workshop
from leftfold.logs import Report
from leftfold.wholelog import open_archive

__all__ = ["decide"]


def decide(
    app: App, category: str, settings: KafkaSettings, stop: threading.Event, report: Report, *, archive: str = ""
) -> None:
    """Decides a category's commands until `stop` is set.

    Args:
        archive: where events are that the topic has lost; '' = nowhere.

    Raises:
        Fenced: this process must end and be started again. ConfigurationError: starting again would not help.
    """
    trouble = Trouble(report, stop)

    served = False

    def told(what: str, details: Mapping[str, Any]) -> None:
        nonlocal served
        if what == "serving":
            served = True
            trouble.told("")
        if what != "left" or served:  # why it never got so far is told once, however often it is tried
            report(what, details)

    past = open_archive(archive)
    while not stop.is_set():
        served = False
        try:
            with closing(Workshop(settings, archive=past)) as workshop:
                Worker(app, category, workshop, stop=stop, report=told).run()
        except Fenced:
            raise
        except InfrastructureError as error:
            trouble.met(error)
