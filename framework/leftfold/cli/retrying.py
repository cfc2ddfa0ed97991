"""Tries again what a reaction has parked, and tells of it."""

from __future__ import annotations

from collections.abc import Sequence

from leftfold.app import App
from leftfold.cli.console import amount, emit, say
from leftfold.cli.failures import Usage
from leftfold.cli.progress import shown
from leftfold.connection import kafka_settings, ring
from leftfold.engine.rebuild_progress import Progress

__all__ = ["retry_parked"]


def retry_parked(app: App, name: str, keys: Sequence[str], kafka: str | None, *, as_json: bool) -> int:
    """One try for each event that is parked now; the exit code.

    Raises:
        Usage: keys were named. InfrastructureError: no broker answers.
    """
    if keys:
        raise Usage(f"{name} is a reaction: all that it has parked is tried again; leave out {' '.join(keys)}")
    retry = ring("leftfold.kafka.retrying").Retry(app, name, kafka_settings(kafka))
    with shown(name) as report:
        tried = retry.run(lambda count: report(Progress("trying again", count, 0)))
    if as_json:
        emit({"reaction": name, "done": tried.done, "parked": tried.parked})
    else:
        say(f"{name}: {amount(tried.done, 'event')} done, {len(tried.parked):,} parked again")
        for where, why in tried.parked.items():
            say(f"  {where}: {why}")
    return 1 if tried.parked else 0
