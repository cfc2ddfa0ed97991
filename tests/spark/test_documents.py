"""The programs in the pages about Spark run as they stand on a log of baskets, its archive and Redis."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from contextlib import closing, suppress
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from leftfold.cli.main import run
from leftfold.client import Views
from leftfold.errors import ViewNotBuilt
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.model import keys as names
from leftfold.parquet.archiver import Archiver
from leftfold.parquet.filesystem import ArchiveFileSystem
from leftfold.redis import RedisSettings, RedisViewStore
from projections.household_spend import household_spend
from services.baskets.app import app
from services.baskets.commands import AddItem, CheckOut, OpenBasket
from tests.project.test_documents import program
from tests.servers import Addresses, patient
from tests.settled import wait_settled
from tests.threads import Background, deciding
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PAGES = ("docs/dataframes.md", "docs/archive.md", "docs/queries.md", "docs/streaming.md")
SESSION = "with spark_session(SparkSettings(java_home=java_home(), jars=spark_jars()))"
NOW = datetime(2017, 3, 1, tzinfo=UTC)
COMMANDS = (
    OpenBasket(basket_id="b-1", at=NOW, household_id="h-7", store_id="367"),
    AddItem(basket_id="b-1", at=NOW, product_id="p-1", quantity=1, sales_value=Decimal("1.25")),
    AddItem(basket_id="b-1", at=NOW, product_id="p-2", quantity=2, sales_value=Decimal("3.50")),
    CheckOut(basket_id="b-1", at=NOW),
    OpenBasket(basket_id="b-2", at=NOW, household_id="h-8", store_id="367"),
)


@pytest.fixture
def _environment(servers: Addresses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Says where the programs find a log of baskets, its archive and Redis."""
    kafka, topic = patient(servers.kafka), names.events("baskets")
    ensure(app, kafka)
    with Background(deciding(app, "baskets", KafkaClientSupplier(kafka))), KafkaClient(app.name, kafka) as client:
        client.send_many(COMMANDS, timeout=WAIT_SECONDS)
        wait_settled(kafka, topic)
    with ClusterAdmin(kafka) as cluster, closing(KafkaBulkLog(kafka)) as log:
        Archiver(ArchiveFileSystem(str(tmp_path / "archive")), topic, cluster.identity(topic), log).run()
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", servers.kafka)
    monkeypatch.setenv("LEFTFOLD_REDIS_URL", servers.redis)
    monkeypatch.setenv("LEFTFOLD_ARCHIVE_DIR", str(tmp_path / "archive"))
    monkeypatch.chdir(ROOT)


@pytest.mark.usefixtures("_environment", "spark")
def test_the_programs_about_spark_run_as_they_stand(
    servers: Addresses, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last one folds a view until it is interrupted; the others join a session, as they would in a notebook."""
    *pages, last = [program(page, tmp_path) for page in PAGES]
    opened = [SESSION in one.read_text("utf-8") for one in (*pages, last)]
    assert opened == [True, False, False, True], "two ask for Kafka"
    assert run(["rebuild", "store_daily", "--app", "services.reports.app:app"]) == 0
    for page in pages:
        runpy.run_path(str(page))
    lines = [line.replace(" ", "") for line in capsys.readouterr().out.splitlines()]
    assert "|BasketOpened.v1|2|NULL|" in lines, "dataframes.md counts the events of each type"
    assert "|p-2|3.5000000000|" in lines, "archive.md adds up what each product sold"
    assert [line for line in lines if line.startswith("StoreDay(") and line.endswith("isoneof1")], "queries.md reads"
    process = subprocess.Popen([sys.executable, str(last)], env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        with closing(RedisViewStore(RedisSettings(url=servers.redis))) as store:
            wait_until(lambda: spent(Views(store)), "household h-7", running=lambda: process.poll() is None)
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_SECONDS) == -signal.SIGINT, "the stream runs until it is interrupted"
    finally:
        process.kill()
        process.wait()


def spent(views: Views) -> bool:
    """Whether the stream has built its generation and folded the basket that was checked out."""
    with suppress(ViewNotBuilt):
        row = views[household_spend].get("h-7")
        return row is not None and row.total == Decimal("4.75")
    return False
