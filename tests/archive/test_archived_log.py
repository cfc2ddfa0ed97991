"""A log whose past is in the archive only folds as if nothing had been trimmed; without it every fold refuses.

What is said of a gap, and by which, is shown in tests/engine/test_log_gaps.py.
"""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import pytest

from leftfold.engine.processing.state_check import StateCheck, check_locally
from leftfold.engine.rebuild.result import Agreement
from leftfold.errors import InfrastructureError
from leftfold.kafka import bulk_log as bulk
from leftfold.kafka import log_reader as reader
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.worker import Worker
from leftfold.model.position import Position
from leftfold.parquet.archive_reader import ParquetArchive
from leftfold.redis import RedisSettings
from tests.archive.past import TOPIC, Past
from tests.domains.ledger import app, by_tag, ledgers, summary
from tests.servers import secret_url
from tests.settled import read_settled
from tests.waiting import read_until, step_until

pytestmark = pytest.mark.servers

GONE = r"gap in the log: ledgers\.events\[\d\] no longer holds offsets 0 to \d+, and no archive is configured"


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers as most programs have them: lost offsets are passed over."""
    careful = reader.reader_config

    def careless(settings: KafkaSettings) -> dict[str, Any]:
        return {**careful(settings), "auto.offset.reset": "earliest"}

    monkeypatch.setattr(reader, "reader_config", careless)
    monkeypatch.setattr(bulk, "reader_config", careless)
    monkeypatch.setattr(KafkaLogReader, "check", lambda self, position: None)
    for module in ("rebuild.planner", "processing.state_check"):
        monkeypatch.setattr(f"leftfold.engine.{module}.check_complete", lambda log, parts: None)


VIEWS = pytest.mark.parametrize("view", [summary, by_tag], ids=lambda view: view.name)


@VIEWS
def test_a_rebuild_from_archive_and_topic_equals_the_projector_and_without_the_archive_none_begins(
    past: Past, view: Any
) -> None:
    before, registry = past.views[view].describe(), past.store.registry(view.name)
    assert before.rows > 5
    with pytest.raises(InfrastructureError, match=GONE + r".*--archive DIR"):
        past.rebuild(view, past.topic).run()
    assert past.store.registry(view.name) == registry
    result = past.rebuild(view, past.log).run()
    assert result.agreement is Agreement.EQUAL, str(result)
    assert past.views[view].describe().checksum == before.checksum


@VIEWS
@pytest.mark.usefixtures("unchecked")
def test_twin_an_unchecked_rebuild_folds_wrong_rows(past: Past, view: Any) -> None:
    assert past.rebuild(view, past.topic).run().agreement is Agreement.DIFFERENT


def test_an_archive_longer_than_the_topic_belongs_to_another_one(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParquetArchive, "ends", lambda self, topic: {0: 10**9})
    with closing(past.log()) as log, pytest.raises(InfrastructureError, match="not the one that was archived"):
        log.stable_ends([TOPIC])


def test_an_archive_of_a_topic_that_was_made_again_is_not_read(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    start = Position({TOPIC: {0: 0}})
    monkeypatch.setattr(ParquetArchive, "identity", lambda self, topic: "another")
    other = "with id another, but the topic has id"
    with pytest.raises(InfrastructureError, match=other):
        past.rebuild(app.views[0], past.log).run()
    with closing(past.reader()) as reader, pytest.raises(InfrastructureError, match=other):
        reader.seek(start)
    # The twin: without the check of the owner, the two are read as one.
    monkeypatch.setattr("leftfold.engine.archive.archived_log.check_owner", lambda *given: None)
    assert read_settled(past.log(), TOPIC)


def test_a_new_projector_reads_the_past_from_the_archive(past: Past) -> None:
    assert past.caught_up(elsewhere(past, 1), past.reader) == past.rows()


@pytest.mark.usefixtures("unchecked")
def test_twins_that_are_unchecked_fold_wrong_rows_and_find_false_differences(past: Past) -> None:
    checks = check_locally(StateCheck.plan(ledgers, past.topic), lambda count: None)
    assert [check for check in checks if check.differences]
    found = past.caught_up(elsewhere(past, 3), past.bare_reader)
    assert all(found[view.name] != past.rows()[view.name] for view in app.views)


def test_the_states_agree_with_archive_and_topic(past: Past) -> None:
    checks = list(check_locally(StateCheck.plan(ledgers, past.log), lambda count: None))
    assert sum(check.streams for check in checks) == 30
    assert not [check for check in checks if check.differences]
    with pytest.raises(InfrastructureError, match=GONE):
        StateCheck.plan(ledgers, past.topic)


def test_reading_both_is_reading_one(past: Past) -> None:
    whole = read_settled(past.log(), TOPIC)
    reader = past.reader()
    reader.seek(Position({TOPIC: dict.fromkeys(range(app.partitions), 0)}))
    found = read_until(reader, reader.ends([TOPIC]), limit=37)
    reader.close()
    assert sorted(found, key=lambda r: (r.partition, r.offset)) == whole
    assert next(record.offset for record in whole if record.partition == 0) == 0


def test_states_that_are_lost_are_folded_from_archive_and_topic(past: Past) -> None:
    """The last test here, since it takes the states away."""
    checks = {c.partition: c.streams for c in check_locally(StateCheck.plan(ledgers, past.log), lambda count: None)}
    past.wipe_state()
    with pytest.raises(InfrastructureError, match="gap in the log"):
        restored(past, KafkaClientSupplier(past.kafka))
    restored(past, KafkaClientSupplier(past.kafka, archive=past.archive))
    again = list(check_locally(StateCheck.plan(ledgers, past.log), lambda count: None))
    assert {check.partition: check.streams for check in again} == checks
    assert not [check for check in again if check.differences]


def restored(past: Past, supplier: KafkaClientSupplier) -> None:
    """A worker works until it serves every partition."""
    worker = Worker(app, "ledgers", supplier, stop=threading.Event())
    try:
        step_until(worker.step, lambda: len(worker.served) == app.partitions, lambda: f"all of {worker.served}")
    finally:
        worker.close()
        supplier.close()


def elsewhere(past: Past, database: int) -> RedisSettings:
    """Another database of the same Redis."""
    return RedisSettings(url=f"{secret_url(past.redis).rpartition('/')[0]}/{database}")
