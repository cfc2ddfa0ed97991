"""What `leftfold verify` puts together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from leftfold.cli.console import note
from leftfold.cli.progress import shown
from leftfold.cli.rebuilding import cores_of, session_of
from leftfold.cli.workbench import Servers, check_addresses, check_broker, workbench
from leftfold.connection import ring
from leftfold.engine.bulk_local import run_here
from leftfold.engine.claims import folded_by
from leftfold.engine.rebuild import Runner
from leftfold.engine.throttle import Throttle, throttled
from leftfold.engine.verification import Verification
from leftfold.engine.verify import Verify
from leftfold.view import View

__all__ = ["Verifying"]


class Verifying:
    """Verifies one generation of each view that is named.

    Args:
        servers: Kafka, Redis and the archive, as options name them. generation: live, held, kept, a name or an id.
        deep: compares rows and indexes, too. folds: which code this is, by view; it is said where another one folded.
    """

    def __init__(
        self, servers: Servers, generation: str, *, deep: bool, folds: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._servers, self._generation, self._deep, self._folds = servers, generation, deep, folds
        self._runner: Runner = run_here
        self._cores = 1

    @contextmanager
    def engine(self, engine: str, master: str | None, py_files: Sequence[Path] = ()) -> Iterator[None]:
        """What folds while the block runs; `py_files` are sent to executors elsewhere."""
        self._cores = cores_of(engine, master)
        self.check()
        with session_of(engine, master, py_files) as session:
            if session is not None:
                self._runner = ring("leftfold.spark.runner").spark_runner(session)
            yield

    def check(self) -> None:
        """Asks for the servers, before anything slow begins.

        Raises:
            InfrastructureError: no broker answers.
        """
        check_addresses(*self._servers)
        check_broker(self._servers[0])

    def run(self, view: View[Any, Any]) -> Verification:
        """Verifies a view once and shows how far it is."""
        with workbench(*self._servers) as bench, shown(view.name) as report:
            verify = Verify(
                view,
                bench.store,
                open_log=bench.open_log,
                open_store=bench.open_store,
                run=self._runner,
                cores=self._cores,
                report=report,
            )
            result = verify.run_named(self._generation, deep=self._deep)
            seen = bench.store.registry(view.name).generations.get(result.generation)
            if seen is not None and (said := folded_by(seen, self._folds.get(view.name, ""))):
                note(said)
            return result

    def for_ever(self, views: Sequence[View[Any, Any]], share: float) -> Iterator[Verification]:
        """Verifies views in turn with a share of one core."""
        self.check()
        throttle = Throttle(share)
        self._runner = throttled(run_here, throttle)
        while True:
            for view in views:
                yield self.run(view)
                throttle.rest()
