"""What was released stays readable: commands under way, refusals, and events of other Apps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from leftfold import App, Event, FoldView
from leftfold.compatibility import compare, lock_of
from tests.compatibility.tills import Load, findings, loader


@pytest.fixture
def load(tmp_path: Path) -> Load:
    return loader(tmp_path)


def test_a_new_field_of_a_command_needs_its_workers_first(load: Load) -> None:
    (finding,) = findings(load, ("    amount: Decimal\n\n@", "    amount: Decimal\n    by: str = ''\n\n@"))
    assert (finding.about, finding.wrong) == ("command tills.Pay.v1", False)
    assert "older workers refuse it; replace them before those who send it" in finding.message


TIPPED = """class Tipped(Paid, category="tills", key="till_id"):
    pass

class Pay("""


def test_an_event_that_a_view_reads_from_now_on_changes_its_fold(load: Load) -> None:
    """A projector of the older code would skip it in the rows that it writes."""
    both = (("class Pay(", TIPPED), ("commands=Pay, events=Paid", "commands=Pay, events=Paid | Tipped"))
    more = ("events=Paid, row", "events=Paid | Tipped, row")
    (finding,) = compare(lock_of(load(*both)), lock_of(load(*both, more)))
    assert str(finding).startswith("view totals: its fold changed since leftfold.lock; raise version= to 2")
    assert finding.wrong


REFUSED = (
    ("FoldView\n", "DomainError, FoldView\n"),
    ("class Pay(Command", "class Closed(DomainError, message='closed'):\n    till_id: str\n\nclass Pay(Command"),
    (
        'key="till_id"):\n    till_id: str\n    amount: Decimal\n\n',
        'key="till_id", rejects=(Closed,)):\n    till_id: str\n    amount: Decimal\n\n',
    ),
)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (", rejects=(Closed,)", "", "error Closed is in its rejects= no more"),
        ("closed'):", "closed'):\n    why: str", "field why of error Closed is new and has no default"),
        ("closed'):\n    till_id: str", "closed'):\n    till_id: str\n    why: str = ''", ""),
    ],
    ids=["no longer declared", "one more field", "one more field with a default"],
)
def test_errors_of_stored_refusals_stay_readable(load: Load, old: str, new: str, what: str) -> None:
    found = compare(lock_of(load(*REFUSED)), lock_of(load(*REFUSED, (old, new))))
    assert [one.message.partition(", and")[0] for one in found if one.wrong] == ([what] if what else [])
    assert all(one.about == "command tills.Pay.v1" for one in found)


def test_a_field_within_a_class_that_holds_itself_is_no_new_version_of_its_event(load: Load) -> None:
    node = 'class Node(BaseModel, frozen=True):\n    parts: tuple["Node", ...] = ()\n    behind: "Node | None" = None\n'
    held = (
        ("FEE =", f"from pydantic import BaseModel\n\n{node}\nFEE ="),
        ("note: str", "tree: Node | None = None\n    note: str"),
    )
    (finding,) = compare(lock_of(load(*held)), lock_of(load(*held, ("    behind", "    n: int = 0\n    behind"))))
    assert (finding.about, finding.wrong) == ("event tills.Paid.v1", False)


def test_events_of_a_category_that_the_app_decided_stay_errors_however_often_the_lock_is_written(load: Load) -> None:
    released, now = lock_of(load()), lock_of(App("tills", views=[]))
    once = now.with_history(released)
    assert once.events == now.with_history(once).events == released.events
    (finding,) = [one for one in compare(once, now) if one.about.startswith("event")]
    assert finding.wrong


def test_another_apps_event_that_is_read_no_more_is_recorded_once() -> None:
    class Shipped(Event, category="parcels", key="parcel"):
        parcel: str

    class Lost(Event, category="parcels", key="parcel"):
        parcel: str

    @dataclass(frozen=True)
    class Seen:
        times: int = 0

    both = FoldView("seen", events=Shipped | Lost, row=Seen, evolve=lambda row, event: row)
    one = FoldView("seen", events=Shipped, row=Seen, evolve=lambda row, event: row)
    before, now = (lock_of(App("mail", views=[view])) for view in (both, one))
    (finding,) = [one for one in compare(before, now) if one.about.startswith("event")]
    assert str(finding) == "event parcels.Lost.v1: is read no more; record it: leftfold check --write"
    assert not finding.wrong
    assert compare(now.with_history(before), now) == []
