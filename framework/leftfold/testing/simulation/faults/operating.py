"""The operator of a simulated App: does what workers say that refuse to go on with a damaged topic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from leftfold.errors import ConfigurationError
from leftfold.kafka.reader import KafkaLogReader
from leftfold.kafka.states import forget_states
from leftfold.testing.simulation.world import World

if TYPE_CHECKING:
    from leftfold.testing.simulation.deployment import Deployment

__all__ = ["Operator"]

_LOOK_SECONDS = 0.5
_WORKING = ("worker", "successor")


class Operator:
    """Once a worker refuses, stops the others, has the states folded again, and starts all of them."""

    def __init__(self, deployment: Deployment, world: World) -> None:
        self._deployment, self._world = deployment, world
        self._waiting: list[Callable[[], None]] = []
        self._is_at_work = False

    def takes(self, role: str, code: int | None, again: Callable[[], None]) -> bool:
        """Whether a process that has ended is started by the operator, not at once."""
        if role not in _WORKING or not (self._is_at_work or code == ConfigurationError.exit_code):
            return False
        self._waiting.append(again)
        if not self._is_at_work:
            self._is_at_work = True
            self._world.scheduler.call_later(_LOOK_SECONDS, self._begin)
        return True

    def _begin(self) -> None:
        self._deployment.keep("operator", "operator", self._operate)

    def _operate(self) -> None:
        if not self._is_at_work:
            return
        for app in [self._deployment.app]:
            for decider in app.deciders:
                self._rebuild(decider.name)
        self._is_at_work = False
        waiting, self._waiting = self._waiting, []
        for again in waiting:
            again()

    def _rebuild(self, category: str) -> None:
        """As `leftfold state rebuild` does; where commands are cut, all that are there are taken, or none."""
        from leftfold.testing.simulation.deployment import SETTINGS

        where = "kept"
        while True:
            for process in self._world.processes:
                if process.role in _WORKING and process.code is None and process.terminate is not None:
                    process.terminate()
            try:
                open_log = partial(KafkaLogReader, SETTINGS)
                forget_states(self._deployment.app, category, SETTINGS, open_log, where)  # type: ignore[arg-type]
            except ConfigurationError as error:
                self._deployment.note("not rebuilt", error)
                if "at work" not in str(error):
                    where = self._world.random.choice(("start", "end"))
                self._world.scheduler.wait(_LOOK_SECONDS)
            else:
                self._deployment.faults.damage.forget(category)
                self._deployment.note("rebuilt", f"states of {category}, commands: {where}")
                return
