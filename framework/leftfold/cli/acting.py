"""The process of one reaction, made again whenever its servers fail it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from leftfold.app import App
from leftfold.cli.trouble import Trouble
from leftfold.errors import Fenced, InfrastructureError
from leftfold.kafka.reacting import Reacting
from leftfold.kafka.settings import KafkaSettings
from leftfold.logs import Report

__all__ = ["act"]


def act(app: App, name: str, settings: KafkaSettings, stop: threading.Event, report: Report) -> None:
    """Acts for a reaction until `stop` is set.

    Raises:
        Fenced: this process must end and be started again. ContractError: an event is newer than this code.
    """
    trouble = Trouble(report, stop)

    def told(what: str, details: Mapping[str, Any]) -> None:
        if what == "reacting":
            trouble.told("")
        report(what, details)

    while not stop.is_set():
        try:
            Reacting(app, name, settings, stop=stop, report=told).run(trouble.told)
        except Fenced:
            raise
        except InfrastructureError as error:
            trouble.met(error)
