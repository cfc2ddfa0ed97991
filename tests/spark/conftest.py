"""One Spark session, one broker and one Redis for the tests that need all three, and a log of random history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from leftfold.client import Views
from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions
from leftfold.engine.rebuild.refresh import Refresh
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.model import keys as names
from leftfold.model.position import Position
from leftfold.redis import RedisBulkSink, RedisSettings, RedisViewStore
from leftfold.spark.core.job import spark_runner
from leftfold.spark.queries.query_refresh import query_runner
from tests.domains.ledger import LedgerCommand, Move, Moved, app, histories, stranger
from tests.planted import as_written, write
from tests.redis.server import RedisServer
from tests.servers import Addresses, emptied, patient, running, secret_url
from tests.threads import Background, deciding, projecting, wait_live
from tests.waiting import WAIT_SECONDS, wait_until
from tests.worker.receipts import behind

if TYPE_CHECKING:
    from tests.spark.streaming.streams import Streams


@dataclass
class Shop:
    """The ledgers App at work on real servers: a worker and a projector in threads of this process."""

    kafka: KafkaSettings
    redis: RedisSettings
    spark: SparkSession

    def __post_init__(self) -> None:
        self.store = RedisViewStore(self.redis)
        self.views = Views(self.store)

    def rebuild(self, view: Any, **options: Any) -> Rebuild:
        found: Rebuild = self._work(Rebuild, view, spark_runner(self.spark), options)
        return found

    def refresh(self, view: Any, **options: Any) -> Refresh:
        """A query view computed as a whole, on Spark."""
        found: Refresh = self._work(Refresh, view, query_runner(self.spark), options)
        return found

    def _work(self, kind: Any, view: Any, run: Any, options: dict[str, Any]) -> Any:
        return kind(
            view,
            self.store,
            open_log=partial(KafkaBulkLog, self.kafka),
            open_reader=partial(KafkaLogReader, self.kafka),
            open_sink=partial(RedisBulkSink, self.redis),
            run=run,
            options=RebuildOptions(**{"keep": 0, **options}),
        )

    def move(self, owner: str, *amounts: str, ledger: str = "") -> Position:
        """Moves of one owner; the position behind them, which is stable."""
        position = self.send(Move(ledger=ledger or f"l-{owner}", owner=owner, amount=Decimal(one)) for one in amounts)
        self.wait_stable(position)
        return position

    def send(self, commands: Any) -> Position:
        """Sends commands, none of which is refused; the position behind all of them."""
        with KafkaClient(app.name, self.kafka) as client:
            return behind(client.send_many(list(commands), timeout=WAIT_SECONDS))

    def wait_stable(self, position: Position) -> None:
        """Waits until nothing before a position is open, since a commit is answered before its markers are written."""
        with closing(KafkaBulkLog(self.kafka)) as log:
            wait_until(
                lambda: log.stable_ends(position.offsets).covers(position), f"the log to be stable at {position}"
            )

    def forget(self, *views: str) -> None:
        for view in views:
            for generation in self.store.registry(view).generations.values():
                self.store.unlink(generation)
            self.store._client.execute_command("DEL", f"view:{view}")

    @property
    def addresses(self) -> list[str]:
        """Where the servers are, as words of a command."""
        return ["--kafka", str(self.kafka.bootstrap_servers), "--redis", secret_url(self.redis)]


@pytest.fixture(scope="package")
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """A broker and a Redis for all of these tests."""
    if (kind := request.config.getoption("--servers")) == "embedded":
        yield emptied(request.getfixturevalue("lasting"))
    else:
        with running(kind, tmp_path_factory.mktemp("servers")) as addresses:
            yield addresses


@pytest.fixture(scope="package")
def shop(servers: Addresses, spark: SparkSession) -> Iterator[Shop]:
    """The App at work, after a random history with an aborted transaction in the middle of it."""
    shop = Shop(patient(servers.kafka), RedisSettings(url=servers.redis), spark)
    ensure(app, shop.kafka)
    with (
        closing(shop.store),
        Background(
            deciding(app, "ledgers", KafkaClientSupplier(shop.kafka)),
            projecting(app.views, partial(KafkaLogReader, shop.kafka), shop.store, member="projector"),
        ),
    ):
        wait_live(shop.store, app.views)
        shop.send(some_histories(7, poison=0.01))
        plant_aborted(shop.kafka)
        position = shop.send(some_histories(8))
        for view in app.views:
            shop.views[view].wait_reached(position, timeout=WAIT_SECONDS)
        yield shop


def some_histories(seed: int, *, poison: float = 0.0) -> Iterator[LedgerCommand]:
    return histories(stranger(seed), 400, poison=poison)


def plant_aborted(kafka: KafkaSettings) -> None:
    """Writes an event to every partition in a transaction that is aborted."""
    moved = as_written(
        Moved(ledger="l-aborted", owner="aborted", amount=Decimal("1.00"), tags=("aborted",)), app.partitions
    )
    everywhere = [moved._replace(partition=partition) for partition in range(app.partitions)]
    write(kafka, names.events("ledgers"), everywhere, commit=False)


@pytest.fixture(scope="package")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis of the streams' own, that a test may do anything to."""
    with RedisServer(tmp_path_factory.mktemp("redis") / "data") as server:
        yield server


@pytest.fixture
def start(shop: Shop, redis: RedisServer) -> Iterator[Callable[..., Streams]]:
    """Starts streams on a Redis that is empty at first."""
    from tests.spark.streaming.streams import Streams

    with redis.client() as client:
        client.flushall()
    started: list[Streams] = []

    def begin(*views: Any, **options: Any) -> Streams:
        started.append(Streams(shop, redis.settings, *views, **options))
        return started[-1]

    yield begin
    for streams in started:
        streams.close()
