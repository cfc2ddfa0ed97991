"""A stream of Spark reads topics and no archive: what they no longer hold is refused, never passed over."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from leftfold.engine.rebuild.rebuilder import RebuildOptions
from leftfold.engine.rebuild.result import Agreement
from leftfold.engine.streaming.microbatch import MicroBatchDriver
from leftfold.engine.views.generations import open_generation
from leftfold.errors import InfrastructureError, LogGap
from leftfold.ports.flush import Phase
from leftfold.runtime.rebuilding import Rebuilding, kept
from leftfold.spark.core.offsets import OffsetCheck
from leftfold.spark.queries.compute import refreshed
from leftfold.spark.streaming.projection import ViewStream
from leftfold.testing import fold
from tests.archive.past import TOPIC
from tests.archive.spark.stopped import Stopped
from tests.domains.ledger import app, by_owner, summary
from tests.reports import Reports
from tests.servers import secret_url
from tests.spark.oracle import events_of
from tests.spark.queries.views import owner_sums
from tests.waiting import step_until

pytestmark = [pytest.mark.servers, pytest.mark.slow]

OTHERS = r"(, ledgers\.events\[\d\] offsets \d+ to \d+)*"
FIRST = rf"gap in the log: ledgers\.events\[\d\] no longer holds offsets 0 to \d+{OTHERS}, and Spark's stream of view "
LATER = FIRST.replace("offsets 0", r"offsets [1-9]\d*")
VIEWS = pytest.mark.parametrize("view", [summary, by_owner], ids=lambda view: view.name)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the check of where topics begin."""
    monkeypatch.setattr(OffsetCheck, "check", lambda self, wanted: None)


def failed(stream: ViewStream) -> InfrastructureError:
    """Steps until the stream raises."""
    with pytest.raises(InfrastructureError) as error:
        step_until(lambda: stream.step(0.05), lambda: False, f"{stream.view.name} to fail")
    return error.value


def test_a_query_stream_that_needs_the_first_event_is_refused(stopped: Stopped, tmp_path: Path) -> None:
    past = stopped.elsewhere(1)
    with stopped.querying(past, tmp_path) as stream:
        error = stream.wait_ended()
    assert isinstance(error, LogGap)
    assert error.exit_code == 69
    with pytest.raises(LogGap, match=FIRST + r"owner_sums .*: leftfold rebuild owner_sums --archive DIR;"):
        raise error
    assert not past.store.registry(owner_sums.name).generations
    assert not list(tmp_path.rglob("*"))


@pytest.mark.usefixtures("unchecked")
def test_twin_an_unchecked_query_stream_fails_when_it_reads(stopped: Stopped, tmp_path: Path) -> None:
    past = stopped.elsewhere(2)
    with stopped.querying(past, tmp_path) as stream:
        error = stream.wait_ended()
    assert type(error) is InfrastructureError
    assert "Spark could not do it" in str(error)
    assert not past.store.registry(owner_sums.name).generations


def test_a_query_stream_that_begins_where_the_topic_does_shows_wrong_rows_and_is_refused_behind_a_trim(
    stopped: Stopped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    past = stopped.elsewhere(3)
    with monkeypatch.context() as careless:
        careless.setattr(OffsetCheck, "check", lambda self, wanted: None)
        careless.setattr("leftfold.spark.queries.query_stream.first_offsets", lambda topic, partitions: "earliest")
        with stopped.querying(past, tmp_path) as stream:
            stream.wait_heard("generation live")
            stopped.wait_committed(tmp_path)
    # What a checkpoint already holds is not asked for again: a stream behind the start of the topic continues.
    with stopped.querying(past, tmp_path) as stream:
        stream.wait_heard("stream continues")
    reported = kept(
        owner_sums, refreshed(stopped.spark, owner_sums), past.kafka.bootstrap_servers, secret_url(past.redis)
    )
    assert str(reported).startswith("incremental: one GROUP BY over one table of events; its stream is past the trim")
    servers = past.kafka.bootstrap_servers, secret_url(past.redis)
    work = Rebuilding(*servers, RebuildOptions(keep=0), past.folder)
    work.use(stopped.spark)
    result = work.run(owner_sums, fold="", quiet=True)
    assert (result.agreement, result.swapped) == (Agreement.DIFFERENT, False), "the twin"
    assert "view owner_sums: this ends its stream, which could not begin again: ledgers.events[" in (
        capsys.readouterr().err
    )
    stopped.trim()
    before = past.store.registry(owner_sums.name)
    with stopped.querying(past, tmp_path) as stream, pytest.raises(LogGap, match=LATER):
        raise stream.wait_ended()
    assert past.store.registry(owner_sums.name) == before
    assert before.live_of(owner_sums.hash)


@VIEWS
def test_a_fold_that_needs_the_first_event_is_refused(stopped: Stopped, view: Any) -> None:
    past = stopped.elsewhere(4)
    with (
        closing(stopped.folding(past, view)) as stream,
        pytest.raises(LogGap, match=FIRST + view.name + f" .*: leftfold rebuild {view.name} --archive DIR$"),
    ):
        stream.step()
    assert not past.store.registry(view.name).generations


def test_a_fold_before_the_start_of_the_topic_is_refused_until_a_rebuild(stopped: Stopped) -> None:
    past, reports = stopped.elsewhere(5), Reports()
    begun = open_generation(past.store, by_owner, {TOPIC: app.partitions}, Phase.SEALED)
    with closing(stopped.folding(past, by_owner, reports)) as stream:
        assert isinstance(failed(stream), LogGap)
        assert past.rebuild(by_owner, past.log).run().swapped
        stopped.write(10)
        stopped.follow(stream, past)
    assert dict(past.views[by_owner].items()) == dict(stopped.past.views[by_owner].items())
    assert begun.id in [details["generation"] for details in reports.of("generation left behind")]


@VIEWS
def test_a_live_fold_before_the_start_of_the_topic_is_left_unchanged(stopped: Stopped, view: Any) -> None:
    reader = stopped.behind.views[view]
    before = reader.describe()
    with closing(stopped.folding(stopped.behind, view)) as stream:
        error = failed(stream)
    with pytest.raises(LogGap, match=LATER + view.name):
        raise error
    assert reader.describe() == before


@pytest.mark.usefixtures("unchecked")
def test_twin_a_live_fold_that_begins_where_the_topic_does_shows_wrong_rows(
    stopped: Stopped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that begins after the gap reads all it asks for; there is no archive that could give it the rest."""
    whole, behind = fold(by_owner, *events_of(stopped.past.log(), TOPIC)), stopped.copied(stopped.behind, 6)
    before = behind.views[by_owner].describe()
    with closing(stopped.past.topic()) as log:
        starts, ends = log.starts([TOPIC]), log.stable_ends([TOPIC])
    assert not before.position.covers(starts)
    position = MicroBatchDriver.position
    monkeypatch.setattr(MicroBatchDriver, "position", lambda self: position(self) | starts)
    with closing(stopped.folding(behind, by_owner, archive=False)) as stream:
        stopped.follow(stream, behind)
    after = behind.views[by_owner].describe()
    assert (after.generation, after.position) == (before.generation, ends)
    assert dict(behind.views[by_owner].items()) != whole
