"""`leftfold run` on a topic that was trimmed: what a stream cannot read is computed from the archive, or refused."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from leftfold.engine.rebuild.result import Agreement
from tests.archive.past import Past
from tests.archive.spark.stopped import Stopped
from tests.cli.shell import Shell
from tests.cli.shell import running as at_work
from tests.domains.ledger import by_owner
from tests.servers import Addresses, secret_url
from tests.spark.queries.views import owner_sums
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.faults]

QUERY = ("run", "owner_sums", "--every", "1s", "--app=tests.spark.queries.views:app")
FOLDS = ("run", "by_owner", "by_tag", "--engine", "spark", "--app=tests.domains.ledger:app", "--master", "local[2]")
HOLE = re.compile(
    r"ledgers\.events\[0\] no longer holds offsets 0 to \d+, ledgers\.events\[1\] offsets 0 to \d+, "
    r"ledgers\.events\[2\] offsets 0 to \d+, ledgers\.events\[3\] offsets 0 to \d+, and Spark's stream of view "
    r"by_owner cannot read an archive"
)


class Running:
    """A `leftfold run` at work, and what it says."""

    def __init__(self, shell: Shell, process: subprocess.Popen[bytes]) -> None:
        self.shell, self._process = shell, process

    def said(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.shell.said().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def wait(self, reached: Any, awaited: str) -> None:
        wait_until(reached, lambda: f"{awaited}: {self.shell.said()}", running=lambda: self._process.poll() is None)


@contextmanager
def running(past: Past, folder: Path, *words: str, archive: str = "") -> Iterator[Running]:
    """The command at work while the block runs; it must end well."""
    places = {"LEFTFOLD_SPARK_CHECKPOINTS": str(folder / "checkpoints"), "LEFTFOLD_ARCHIVE_DIR": archive}
    shell = Shell(folder, places).at(Addresses(past.kafka.bootstrap_servers, secret_url(past.redis)))
    with at_work(shell, *words, "--json-logs") as process:
        yield Running(shell, process)
        family = psutil.Process(process.pid).children(recursive=True)
        assert any("java" in one.name() for one in family)
        process.terminate()
        assert process.wait(WAIT_SECONDS) == 0, shell.said()
        assert psutil.wait_procs(family, timeout=WAIT_SECONDS)[1] == []


def test_a_query_view_is_kept_from_archive_and_topic(stopped: Stopped, tmp_path: Path) -> None:
    past = stopped.elsewhere(7)
    with running(past, tmp_path, *QUERY, archive=past.folder) as run:
        run.wait(lambda: stopped.is_live(past, owner_sums), "owner_sums to be computed")
        stopped.write(11)
        ends = stopped.ends()
        run.wait(lambda: past.views[owner_sums].describe().position.covers(ends), f"owner_sums to be at {ends}")
        (reported,) = run.said("batch and swap")
        assert (reported["view"], reported["every"]) == ("owner_sums", "1 s")
        run.wait(lambda: len(run.said("refreshed")) >= 2, "the second refresh to be reported, which is behind its swap")
        assert not run.said("waiting")
    assert stopped.agreement(past) is Agreement.EQUAL
    told_by_check = run.shell.apart("check", "--app=tests.spark.queries.views:app").err
    assert re.search(
        r"view owner_sums is kept by batch and swap: ledgers\.events\[0\] begins at offset \d+, and a stream, which "
        r"reads no archive, would have to begin at 0; its SQL would allow a stream",
        told_by_check,
    ), told_by_check
    status = run.shell.apart("status", "--app=tests.spark.queries.views:app", "--json").ok()
    (row,) = (row for row in status.rows() if row.get("live"))
    assert (row["name"], row["kept"], row["behind"]) == ("owner_sums", "batch and swap", 0.0)
    assert f"view owner_sums is kept by batch and swap: {row['why']}" in status.err


def test_without_an_archive_nothing_is_shown(stopped: Stopped, tmp_path: Path) -> None:
    past = stopped.elsewhere(8)
    with running(past, tmp_path, *QUERY) as run:
        run.wait(lambda: run.said("waiting"), "the gap to be reported")
        (reported,) = run.said("waiting")
        assert "a gap in the log: ledgers.events[0] no longer holds offsets 0 to" in reported["why"]
        assert not run.said("batch and swap")
    assert not past.store.registry(owner_sums.name).generations


def test_a_folded_view_stands_still_until_it_is_rebuilt(stopped: Stopped, tmp_path: Path) -> None:
    past = stopped.elsewhere(9)
    with running(past, tmp_path, *FOLDS, archive=past.folder) as run:
        run.wait(lambda: len(run.said("view stopped")) == 2, "both views to stop")
        why = {reported["view"]: reported["why"] for reported in run.said("view stopped")}
        assert why.keys() == {"by_owner", "by_tag"}
        assert HOLE.search(why["by_owner"]), why
        type_the_way_out(run.shell, why["by_owner"])
        run.wait(lambda: run.said("streaming"), "the stream to go on")
        stopped.write(12)
        ends = stopped.ends()
        run.wait(lambda: past.views[by_owner].describe().position.covers(ends), f"by_owner to be at {ends}")
        assert [reported["view"] for reported in run.said("streaming")] == ["by_owner"]
        assert len(run.said("view stopped")) == 2
        assert not run.said("waiting")
    assert dict(past.views[by_owner].items()) == dict(stopped.past.views[by_owner].items())


def type_the_way_out(shell: Shell, why: str) -> None:
    """The very command that a message names."""
    (typed,) = re.findall(r"by itself: leftfold (rebuild by_owner --archive \S+)$", why)
    shell.apart(*shlex.split(typed), "--app=tests.domains.ledger:app", "--master", "local[2]").ok()
