"""What `leftfold top` reckons from two looks, and how parts of a run answer scrapes."""

from __future__ import annotations

import errno
import json
import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from leftfold import App
from leftfold.errors import InfrastructureError
from leftfold.model.keys import NO_ROW
from leftfold.ports import instruments
from leftfold.runtime.lifecycle import end_all
from leftfold.runtime.operations.scrape import Histogram, Rates, Scrape, quantile
from leftfold.runtime.operations.survey import Survey
from leftfold.runtime.project import Usage
from leftfold.runtime.telemetry_export import (
    ObservedApps,
    PartMetrics,
    _served,
    _socket_of,
    answer_scrapes,
    check_address,
    observations,
    parts_directory,
)
from tests.domains.shop import app
from tests.listening import listening
from tests.waiting import WAIT_SECONDS

MEMBER = ("decider", "orders")
SCRAPE = """
# TYPE messaging_client_consumed_messages_total counter
messaging_client_consumed_messages_total{leftfold_kind="decider",leftfold_name="orders",leftfold_part="orders.1"} 30
messaging_client_consumed_messages_total{leftfold_kind="decider",leftfold_name="orders",leftfold_part="orders.2"} 12
# TYPE messaging_process_duration_seconds histogram
messaging_process_duration_seconds_bucket{le="0.1",leftfold_kind="decider",leftfold_name="orders"} 90
messaging_process_duration_seconds_bucket{le="1.0",leftfold_kind="decider",leftfold_name="orders"} 100
messaging_process_duration_seconds_bucket{le="+Inf",leftfold_kind="decider",leftfold_name="orders"} 100
messaging_process_duration_seconds_sum{leftfold_kind="decider",leftfold_name="orders"} 7
messaging_process_duration_seconds_count{leftfold_kind="decider",leftfold_name="orders"} 100
# TYPE leftfold_batch_size histogram
leftfold_batch_size_bucket{le="+Inf",leftfold_kind="decider",leftfold_name="orders",leftfold_part="orders.1"} 8
leftfold_batch_size_sum{leftfold_kind="decider",leftfold_name="orders",leftfold_part="orders.1"} 30
leftfold_batch_size_count{leftfold_kind="decider",leftfold_name="orders",leftfold_part="orders.1"} 8
"""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts and addresses with metrics answer from threads of this process."""
    monkeypatch.setattr("leftfold.runtime.telemetry_export._ANSWER_SECONDS", WAIT_SECONDS)
    monkeypatch.setattr("leftfold.runtime.operations.scrape._SCRAPE_SECONDS", WAIT_SECONDS)


def row(name: str = "orders", **fields: Any) -> dict[str, Any]:
    """A member with nothing to do."""
    common = {"kind": "decider", "name": name, "problems": [], "remarks": [], "running": 1, "lag": 0, "behind": 0.0}
    return common | {"parked": None, "dead": 0, "done": 0} | fields


def test_quantiles_are_interpolated_within_a_bucket_and_end_at_the_last_bound() -> None:
    found = Histogram({0.1: 90.0, 1.0: 100.0, math.inf: 100.0})
    assert quantile(found, 0.45) == pytest.approx(0.05)
    assert quantile(found, 0.95) == pytest.approx(0.55)
    assert quantile(Histogram({1.0: 0.0, math.inf: 4.0}), 0.5) == 1.0
    assert quantile(Histogram(), 0.5) is None
    assert quantile(Histogram({1.0: 0.0, math.inf: 0.0}), 0.5) is None


def test_a_rate_is_what_was_processed_since_the_last_look_by_all_processes_together() -> None:
    rates, first, second, third = Rates(), [row(done=100)], [row(done=160)], [row(done=0)]
    for rows, at in ((first, 10.0), (second, 12.0), (third, 14.0)):
        rates.added(rows, None, at)
    assert [rows[0]["rate"] for rows in (first, second, third)] == [None, 30.0, None]
    scrape, rates = Scrape.of(text_string_to_metric_families(SCRAPE)), Rates()
    assert scrape.processed[MEMBER] == {"orders.1": 30.0, "orders.2": 12.0}
    rates.added([row()], Scrape({MEMBER: {"orders.1": 2.0, "orders.2": 0.0}}, {}), 10.0)
    rates.added(rows := [row()], scrape, 20.0)
    assert (rows[0]["rate"], rows[0]["p50"]) == (4.0, pytest.approx(0.0556, abs=1e-4))


def test_batches_and_their_records_are_those_since_the_last_look() -> None:
    rates, counts = Rates(), ((3.0, 8.0), (3.0, 8.0))
    scrapes = [Scrape({}, {}, batches={MEMBER: {"a": n}}, batched={MEMBER: {"a": sum_}}) for n, sum_ in counts]
    found = list[tuple[int | None, float | None]]()
    for number, scrape in enumerate([*scrapes, Scrape.of(text_string_to_metric_families(SCRAPE)), None]):
        rates.added(rows := [row()], scrape, 10.0 * (number + 1))
        found.append((rows[0]["batches"], rows[0]["per_batch"]))
    # The part of the third scrape was in none before.
    assert found == [(None, None), (0, None), (None, None), (None, None)]
    before = Scrape({}, {}, batches={MEMBER: {"orders.1": 4.0}}, batched={MEMBER: {"orders.1": 20.0}})
    rates = Rates()
    rates.added([row()], before, 10.0)
    rates.added(rows := [row()], Scrape.of(text_string_to_metric_families(SCRAPE)), 20.0)
    assert (rows[0]["batches"], rows[0]["per_batch"]) == (4, 2.5)


def test_a_part_that_missed_one_scrape_or_was_restarted_makes_no_leap() -> None:
    """By sums of all parts, the million of a part that did not answer in time would be the work of one look."""
    slow, quick = Histogram({1.0: 0.0, math.inf: 9.0}), Histogram({1.0: 5.0, math.inf: 5.0})
    looks = [
        Scrape(
            {MEMBER: {"a": 1_000_000.0, "b": 10.0}}, {MEMBER: {"a": slow, "b": Histogram({1.0: 0.0, math.inf: 0.0})}}
        ),
        Scrape({MEMBER: {"b": 20.0}}, {MEMBER: {"b": Histogram({1.0: 1.0, math.inf: 1.0})}}),
        Scrape({MEMBER: {"a": 1_000_100.0, "b": 30.0}}, {MEMBER: {"a": slow, "b": quick}}),
        Scrape({MEMBER: {"a": 40.0, "b": 30.0}}, {MEMBER: {"a": quick, "b": quick}}),
    ]
    rates, found = Rates(), list[tuple[float | None, float | None]]()
    for number, scrape in enumerate(looks):
        rates.added(rows := [row()], scrape, 10.0 * (number + 1))
        found.append((rows[0]["rate"], rows[0]["p99"]))
    assert [rate for rate, _ in found] == [None, 1.0, 1.0, 4.0]
    assert [seconds is not None and seconds < 1.0 for _, seconds in found] == [False, True, True, True]


def test_durations_are_those_since_the_last_look_and_all_of_them_after_a_restart() -> None:
    before, now = Histogram({0.1: 90.0, math.inf: 100.0}), Histogram({0.1: 90.0, math.inf: 110.0})
    assert now.since(before).buckets == {0.1: 0.0, math.inf: 10.0}
    assert Histogram({0.1: 1.0, math.inf: 1.0}).since(before).buckets == {0.1: 1.0, math.inf: 1.0}


@pytest.mark.usefixtures("patient")
def test_a_part_that_does_not_answer_is_left_out_and_named() -> None:
    with parts_directory() as directory:
        end = answer_scrapes(str(directory), "orders", lambda: b"# TYPE a gauge\na 1.0\n")
        answers = PartMetrics(directory, ["orders", "stock"], lambda: b"# TYPE b gauge\nb 2.0\n")
        registry = CollectorRegistry()
        registry.register(answers)
        shown = generate_latest(registry).decode()
        end()
        answers.close()
        assert directory.stat().st_mode & 0o077 == 0, "others may not enter"
    assert 'leftfold_part_up{leftfold_part="orders"} 1.0' in shown
    assert 'leftfold_part_up{leftfold_part="stock"} 0.0' in shown
    assert 'a{leftfold_part="orders"} 1.0' in shown
    assert "\nb 2.0\n" in shown


@pytest.mark.usefixtures("patient")
def test_a_part_whose_metrics_fail_once_answers_the_next_scrape() -> None:
    texts = iter([None, b"# TYPE a gauge\na 12.0\n"])

    def shown() -> bytes:
        text = next(texts)
        if text is None:
            raise RuntimeError("dictionary changed size during iteration")
        return text

    with parts_directory() as directory:
        end = answer_scrapes(str(directory), "orders", shown)
        answers = PartMetrics(directory, ["orders"], bytes)
        up = [[sample.value for sample in next(iter(answers.collect())).samples] for _ in range(2)]
        end()
        answers.close()
    assert up == [[0.0], [1.0]]


@pytest.mark.usefixtures("patient")
def test_a_part_answers_scrapes_also_after_no_file_was_free(monkeypatch: pytest.MonkeyPatch) -> None:
    accept, errors = socket.socket.accept, [OSError(errno.EMFILE, "too many open files")]

    def accepted(self: socket.socket) -> Any:
        if errors:
            raise errors.pop()
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", accepted)
    with parts_directory() as directory:
        end = answer_scrapes(str(directory), "orders", lambda: b"# TYPE a gauge\na 12.0\n")
        answers = PartMetrics(directory, ["orders"], bytes)
        up = [sample.value for sample in next(iter(answers.collect())).samples]
        end()
        answers.close()
    assert (up, errors) == ([1.0], [])


def test_a_part_that_was_killed_as_it_answered_is_not_shown() -> None:
    with parts_directory() as directory, socket.socket(socket.AF_UNIX) as part:
        part.bind(str(_socket_of(str(directory), "orders")))
        part.listen()

        def killed() -> None:
            with part.accept()[0] as connection:
                connection.sendall(b"# TYPE a gauge\na 1")

        threading.Thread(target=killed, daemon=True).start()
        answers = PartMetrics(directory, ["orders"], bytes)
        (up,) = answers.collect()
        answers.close()
    assert [sample.value for sample in up.samples] == [0.0]


@pytest.mark.parametrize(
    ("text", "address"), [("9464", ("127.0.0.1", 9464)), (":9464", ("127.0.0.1", 9464)), ("[::1]:9464", ("::1", 9464))]
)
def test_metrics_are_served_on_loopback_where_no_host_is_named(text: str, address: tuple[str, int]) -> None:
    assert check_address(text) == address


@pytest.mark.parametrize("text", ["nowhere", "host:", "127.0.0.1:70000"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Usage, match=r"it is no HOST:PORT"):
        check_address(text)


_PART = """
from leftfold.ports import instruments
from leftfold.runtime.logging import open_report
from leftfold.runtime.telemetry_export import collected

open_report("orders", as_json=True)
with collected("leftfold", "orders"):
    with instruments.DECIDE.span("orders.commands"):
        instruments.COMMANDS.record(1, {"leftfold.outcome": "accepted"})
"""


def test_what_is_done_within_a_time_is_not_waited_for_longer() -> None:
    """A collector that hangs must not hold up a part that ends: it has 15 seconds before its supervisor kills it."""
    done, never = threading.Event(), threading.Event()
    end_all(WAIT_SECONDS, [done.set])
    assert done.is_set()
    end_all(0.01, [never.wait, never.wait])
    never.set()


def test_a_part_whose_collector_hangs_ends_and_logs_lines_of_json_only() -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        address = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        patient = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_EXPORTER_OTLP_TIMEOUT": "3600"}
        ended = subprocess.run(
            [sys.executable, "-c", _PART],
            env=os.environ | patient,
            capture_output=True,
            timeout=WAIT_SECONDS,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    assert all(json.loads(line) for line in ended.stderr.splitlines())


def test_an_address_that_is_taken_may_be_free_after_a_restart() -> None:
    """Its exit code is not one of those after which nothing starts it again."""
    with socket.create_server(("127.0.0.1", 0)) as other, parts_directory() as directory:
        answers = PartMetrics(directory, ["orders"], bytes)
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(InfrastructureError, match=f"--metrics {taken}: .*in use"), _served(taken, answers):
            pass
        answers.close()


def test_what_the_survey_does_not_know_is_no_number() -> None:
    unknown = row(workers=1, offsets=7, per_command=0, lag=3, behind=None)
    found = {one.instrument.name: one.value for one in observations(unknown)}
    assert found["leftfold.lag"] == 3
    assert "leftfold.lag.duration" not in found
    other = {"kind": "view", "name": "v", "projectors": 1, "is_current": False}
    assert not list(observations(other))


def test_events_that_name_no_row_are_not_parked_rows() -> None:
    """Any client can send such an event, and no retry ends it: an alert would fire for ever."""
    view = {"kind": "view", "name": "v", "projectors": 1, "is_current": True, "created": None, "time": None}
    for parked, count in (([NO_ROW], 0), ([NO_ROW, "k"], 1)):
        found = {one.instrument.name: one.value for one in observations(view | {"parked": parked})}
        assert found["leftfold.parked"] == count


def test_remarks_of_a_survey_are_no_problems_that_an_alert_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Remarking(Survey):
        def none(self, app: App) -> Iterator[Any]:
            self._remark("view v leaves out 1 event without a row")
            self.problems.append("view v parks 'k'")
            yield from ()

        deciders = parts = views = none

    monkeypatch.setattr("leftfold.runtime.operations.survey.Survey", Remarking)
    observed = ObservedApps([app], None, None)
    observed._survey()
    problems = next(one for one in observed._found if one.instrument is instruments.PROBLEMS)
    assert (problems.value, problems.attributes) == (3, {"leftfold.app": "shop"})


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (401, b'{"type":"about:blank","title":"no valid credentials","status":401}'),
        (404, b"404 page not found"),
        (200, b"<!DOCTYPE html><html><body>a page</body></html>"),
        (200, b'# TYPE leftfold_batch_size histogram\nleftfold_batch_size_bucket{le="+In'),
        (200, b"# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes many\n"),
    ],
)
def test_what_is_no_metrics_of_a_run_is_read_as_none(status: int, text: bytes) -> None:
    with listening(lambda _: (status, text)) as url:
        assert Scrape.read(url.removeprefix("http://")) is None


@pytest.mark.usefixtures("patient")
def test_metrics_of_a_run_are_read_from_its_address() -> None:
    with listening(lambda _: (200, SCRAPE.encode())) as url:
        scrape = Scrape.read(url.removeprefix("http://"))
    assert scrape is not None
    assert scrape.members == [MEMBER]
