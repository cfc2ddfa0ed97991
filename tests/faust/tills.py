"""Sales written as a worker would, what readers see of them, and what keeps the view: this process or others."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Self, TypeAlias
from uuid import uuid4

from leftfold.client import Views
from leftfold.errors import LeftfoldError
from leftfold.faust.streams import streams_of
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.ports.message_codec import utc_text
from leftfold.redis import RedisSettings, RedisViewStore
from tests.cli.shell import ROOT, Shell, Typed
from tests.faust.sales import PARTITIONS, VERSION, Sold, Window, keep, lately_of
from tests.planted import as_written, write
from tests.servers import Addresses, patient
from tests.threads import working
from tests.waiting import WAIT_SECONDS, wait_until

__all__ = ["NOW", "Keep", "Program", "Tills", "by", "by_the_document", "keeping", "running"]

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
APP, PART = "--app=tests.faust.sales:app", ("agents", "lately")


class Tills:
    """Sales as a worker would write them, and what readers see of them."""

    def __init__(self, addresses: Addresses) -> None:
        self.kafka = patient(addresses.kafka)
        self.store = RedisViewStore(RedisSettings(url=addresses.redis))
        self.committed: list[Sold] = []
        self._chance = random.Random(5)

    def sales(self, count: int) -> list[Sold]:
        """Sales in several stores, an hour long."""
        return [
            Sold(
                store=f"s{self._chance.randrange(5)}",
                cents=self._chance.randrange(1, 1000),
                at=NOW + timedelta(seconds=self._chance.randrange(3600)),
            )
            for _ in range(count)
        ]

    def write(self, sales: list[Sold], *, commit: bool = True) -> None:
        """One transaction that is committed or aborted."""
        records = [as_written(sale, PARTITIONS, ce_time=utc_text(sale.at).encode()) for sale in sales]
        write(self.kafka, "tills.events", records, commit=commit)
        self.committed += sales if commit else []

    def rows(self, version: int = 1) -> dict[tuple[str, datetime], Window]:
        """What readers see, once it holds everything that is committed."""
        with ClusterAdmin(self.kafka) as cluster:
            ends = cluster.ends(["tills.events"])
        reader = Views(self.store)[lately_of(version)]
        reader.get(("s0", NOW), after=ends, timeout=240.0)
        return dict(reader.items())

    def seen(self, version: int) -> dict[tuple[str, datetime], Window]:
        return dict(Views(self.store)[lately_of(version)].items())

    def live(self, version: int) -> str:
        view = lately_of(version)
        return self.store.registry(view.name).live[view.hash]

    def is_live(self, version: int) -> bool:
        view = lately_of(version)
        return self.store.registry(view.name).live_of(view.hash) is not None


Keep: TypeAlias = Callable[[Tills, threading.Event], None]


def by(version: int, **options: Any) -> Keep:
    """Keeps a version of the view."""
    return lambda tills, stop: keep(tills.kafka.aiokafka(), tills.store, stop, version=version, **options)


def by_the_document(tills: Tills, stop: threading.Event) -> None:
    """Keeps the view with the code of docs/faust.md as it stands there."""
    text = (ROOT / "docs" / "faust.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    module = ModuleType("document")
    sys.modules["document"] = module  # where dataclasses look for what annotations name
    exec(code, module.__dict__)  # noqa: S102  # our own document
    streams = streams_of(module.app, module.sums, tills.kafka.aiokafka(), tills.store, lambda topic: PARTITIONS)
    streams.run(stop)


def running(tills: Tills, work: Keep) -> AbstractContextManager[list[BaseException]]:
    """The view is kept while the block runs, on a thread; what that failed of."""
    return working(partial(work, tills))


@contextmanager
def keeping(tills: Tills, work: Keep, version: int = 1) -> Iterator[None]:
    """The view is live and kept while the block runs."""
    with running(tills, work) as failures:
        wait_until(lambda: bool(failures) or tills.is_live(version), "the view")
        if not failures:
            try:
                yield
            except LeftfoldError as error:
                raise (failures or [error])[0] from error  # readers only see that no process keeps the view
    if failures:
        raise failures[0]


class Program:
    """A part of `leftfold run` that keeps the view, in a process of its own until the block ends; or the whole run."""

    def __init__(self, addresses: Addresses, place: Path, version: int = 1, *, whole: bool = False) -> None:
        self._shell = Shell(place, {VERSION: str(version)}).at(addresses).beside(uuid4().hex)
        self.said = self._shell.said
        words = ["run", "lately", APP, "--plain-logs"] if whole else ["--name=lately", APP, "--logs=plain", *PART]
        module = "leftfold.cli" if whole else "leftfold.cli.run.child_process"
        self.process = self._shell.start(words, module=module, stdin=subprocess.PIPE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.end()

    def tell(self, *words: str) -> Typed:
        """Types a command about the same App on the same servers."""
        return self._shell.apart(*words, APP)

    def end(self, *, kill: bool = False) -> int:
        """Ends it in order, or at once; its exit code."""
        if self.process.poll() is None:
            (self.process.kill if kill else self.process.terminate)()
        code = self.process.wait(WAIT_SECONDS)
        if self.process.stdin is not None:
            self.process.stdin.close()
        return code
