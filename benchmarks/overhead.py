"""What safety costs the live projector: the same fold without checksums and without watching and comparing tokens."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.figure import Figure
from benchmarks.purses import Spent, Total, purses, write_spendings
from benchmarks.tailing import catch_up, forget_views
from leftfold import FoldView
from leftfold.kafka.settings import KafkaSettings
from leftfold.local import Servers
from leftfold.model.rows import Fields, RowCodec
from leftfold.ports.flush import BucketFlush
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.redis.connection.protocol import RawConnection, connect
from leftfold.redis.flusher import Flusher, Flushers, PendingFlush

__all__ = ["run"]

EVENTS, ROUNDS = 300_000, 4


class _Undigested(RowCodec[Total]):
    """Rows without a share in any checksum."""

    @staticmethod
    def digest(key: str, fields: Fields) -> int:
        """Nothing."""
        return 0


class _Unfenced(Flusher):
    """Writes whatever comes, and never looks at who was there before."""

    def _send(self, connection: RawConnection, flush: PendingFlush, flushes: Sequence[BucketFlush]) -> None:
        flush.commands = self.commands(flushes)
        flush.replies = connection.begin(flush.commands)


class _UnfencedStore(RedisViewStore):
    def __init__(self, settings: RedisSettings) -> None:
        super().__init__(settings)
        self._flushers = Flushers(settings, connect, _Unfenced)


def _bare() -> FoldView[Spent, Total, str]:
    view = FoldView("purses", events=Spent, row=Total, evolve=purses.evolve)
    view.rows = _Undigested(Total, (), "view purses")
    return view


def run(servers: Servers, events: int = EVENTS) -> list[Figure]:
    """Both in turns; the figure is how much longer an event takes, from the medians of the rounds."""
    write_spendings(KafkaSettings(bootstrap_servers=servers.kafka), events)
    safe, bare = [], []
    for _ in range(ROUNDS):
        forget_views(servers)
        safe.append(catch_up(servers, purses, events))
        forget_views(servers)
        bare.append(catch_up(servers, _bare(), events, _UnfencedStore(RedisSettings(url=servers.redis))))
    percent = (median(bare) / median(safe) - 1) * 100
    note = f"{median(safe):,.0f} events/s, {median(bare):,.0f} without checksum and tokens"
    return [Figure("tail.overhead", percent, "%", goal=15, smaller=True, note=note)]
