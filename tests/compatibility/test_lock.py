"""leftfold.lock: what counts as a change, and what is said about it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from typing import Any

import pytest

from leftfold import App, ConfigurationError, Process
from leftfold.compatibility import Lock, compare, lock_of
from tests.compatibility.tills import SOURCE, Load, findings, loader
from tests.domains.trade import Checkout, Placed, checkout, checkout_with, orders, react


@pytest.fixture
def load(tmp_path: Path) -> Load:
    return loader(tmp_path)


def messages(load: Load, *replacements: tuple[str, str]) -> list[str]:
    return [str(finding) for finding in findings(load, *replacements)]


def test_the_same_code_in_another_file_changes_nothing(load: Load) -> None:
    assert messages(load) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('    """The till after one more payment."""\n', "    # The till.\n"),
        ("def evolve(till: Till, event: Paid) -> Till:", "def evolve(till, event):"),
        ("def net(amount: Decimal)", "def unused() -> None: ...\n\ndef net(amount: Decimal)"),
        ("return amount - FEE", "return (amount\n            - FEE)"),
        ("return [Paid(till_id=command.till_id, amount=command.amount)]", "return []"),
    ],
    ids=["docstring", "annotations", "another function", "layout", "decide"],
)
def test_what_changes_no_stored_meaning_is_not_mentioned(load: Load, old: str, new: str) -> None:
    assert messages(load, (old, new)) == []


FOLD = (
    "decider tills: evolve changed since leftfold.lock; raise version= to 2, or, if it means the same, accept it: "
    "leftfold check --write"
)
STATE = "decider tills: its state is stored in another form; "
EVENT, COMMAND = "event tills.Paid.v1: ", "command tills.Pay.v1: "
UPCAST = "give Paid version=2 and upcasts={1: ...}"
ROW = "class Row:\n    total: Decimal = Decimal(0)"
FINDINGS: dict[str, tuple[tuple[str, ...], bool, str, str]] = {
    # what is replaced by what, whether that is wrong, and how what is said of it begins and ends
    "evolve": (("till.total + net(event.amount)", "till.total - net(event.amount)"), True, FOLD, ""),
    "a helper": (("return amount - FEE", "return amount + FEE"), True, FOLD, ""),
    "a constant of a helper": (('FEE = Decimal("0.10")', 'FEE = Decimal("0.20")'), True, FOLD, ""),
    "a default of the state": (
        ("class Till:\n    total: Decimal = Decimal(0)", "class Till:\n    total: Decimal = Decimal(1)"), True, STATE,
        "",
    ),
    "a renamed field of the state": (
        ("class Till:\n    total", "class Till:\n    balance", "till, total=till.total", "till, balance=till.balance"),
        True, STATE, "raise version= to 2, or, if only fields with defaults are new, accept it",
    ),
    "another App": (
        ('App("tills"', 'App("booths"'), True, "app booths: was tills, after which its consumer groups are named",
        "stop all that run the old one first, then accept it: leftfold check --write",
    ),
    "the initial state": (("initial_state=Till()", "initial_state=Till(Decimal(5))"), True, FOLD, ""),
    "a raised version": (
        ("till.total + net", "till.total - net", "evolve=evolve)", "evolve=evolve, version=2)"), False,
        "decider tills: version=2 is not in leftfold.lock yet; record it: leftfold check --write", "",
    ),
    "a key function": (
        ("lambda e: e.till_id", "lambda e: e.note"), True,
        "view totals: its fold changed since leftfold.lock; raise version= to 2", "",
    ),
    "another row": ((ROW, ROW + "\n    n: int = 0"), False, "view totals: ", "gets a new generation"),
    "another type": (
        ("amount: Decimal\n    note", "amount: str\n    note"), True,
        EVENT + "field amount was number or string and is now string", UPCAST,
    ),
    "a removed field": (
        ('    note: str = ""\n', ""), True, EVENT + "field note is removed, which older readers need", UPCAST
    ),
    "a new field": (
        ("    note: str", "    by: str\n    note: str"), True,
        EVENT + "field by is new and has no default, so what was written before cannot be read", UPCAST,
    ),
    "a default that is lost": (
        ('    note: str = ""', "    note: str"), True, EVENT + "field note has lost its default", UPCAST
    ),
    "a new field with a default": (("    note: str", '    by: str = ""\n    note: str'), False, EVENT, ""),
    "a new field of a command, some of which may be under way": (
        ("    amount: Decimal\n\n@", "    amount: Decimal\n    by: str\n\n@"), True, COMMAND,
        "give Pay version=2 and upcasts={1: ...}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", FINDINGS)
def test_a_change_is_wrong_or_recorded_and_says_what_to_do(load: Load, change: str) -> None:
    texts, wrong, begins, holds = FINDINGS[change]
    (finding,) = findings(load, *zip(texts[::2], texts[1::2], strict=True))
    assert finding.wrong is wrong
    assert str(finding).startswith(begins)
    assert holds in str(finding)


PARTS = """
class Color(Enum):
    RED = "red"
    BLUE = "blue"

    @property
    def share(self) -> int:
        return 2

@dataclass(frozen=True)
class Place:
    city: str = ""

    def toll(self) -> Decimal:
        return Decimal(3)

class Timed(Event):
    def late(self) -> bool:
        return False

class Paid(Timed, category="tills", key="till_id"):
    rate: ClassVar[Decimal] = Decimal(4)
    color: Color = Color.RED
    place: Place = Place()
    by: list[Place] = []

    def after_tax(self) -> Decimal:
        return self.amount * self.rate

    till_id: str
"""
LARGE = (
    ("from decimal import Decimal\n", "from decimal import Decimal\nfrom enum import Enum\nfrom functools import *\n"),
    (
        "from dataclasses import",
        "from typing import Annotated, ClassVar\nfrom pydantic import Field\nfrom dataclasses import",
    ),
    ('class Paid(Event, category="tills", key="till_id"):\n    till_id: str\n', PARTS.lstrip()),
)
BOUND = "Annotated[Decimal, Field(max_digits=18, decimal_places=2)]"
CHANGED: dict[str, tuple[str, str, str, str]] = {
    # what is there before, what instead of it later, and how what is said begins and ends; the first may be decorated
    "a default that is an enum's is lost": (
        "Color = Color.RED", "Color", EVENT + "field color has lost its default", UPCAST
    ),
    "a default that is a record is lost": (
        "Place = Place()", "Place", EVENT + "field place has lost its default", UPCAST
    ),
    "another default": ("Color = Color.RED", "Color = Color.BLUE", EVENT + "field color has another default", UPCAST),
    "a bound": (
        "amount: Decimal\n    note", f"amount: {BOUND}\n    note",
        EVENT + "field amount was number or string and is now number or string {'decimalPlaces': 2", UPCAST,
    ),
    "another key": (
        '"tills", key="till_id"):\n    rate', '"tills", key="note"):\n    rate',
        EVENT + "its key was till_id and is note, so that its streams are others; give the class another name", "",
    ),
    "a member of an enum": ('"blue"', '"blue"\n    GREEN = "green"', EVENT + "field color was", UPCAST),
    "a property of an enum in a field": ("return 2", "return 5", FOLD, ""),
    "a method of a record in a field": ("Decimal(3)", "Decimal(5)", FOLD, ""),
    "a method of a base class": ("return False", "return True", FOLD, ""),
    "a constant of the class": ("Decimal(4)", "Decimal(5)", FOLD, ""),
    "a method of the event": ("self.amount * self.rate", "self.amount / self.rate", FOLD, ""),
    "a helper whose results are kept": ("@cache|amount - FEE", "amount + FEE", FOLD, ""),
    "a helper that is chosen by type": ("@singledispatch|amount - FEE", "amount + FEE", FOLD, ""),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGED)
def test_a_change_below_the_surface_is_wrong(load: Load, change: str) -> None:
    before, after, begins, holds = CHANGED[change]
    decorator, _, old = before.rpartition("|")
    large = (*LARGE, ("def net(", f"{decorator}\ndef net("))
    found = compare(lock_of(load(*large)), lock_of(load(*large, (old, after))))
    (finding,) = [one for one in found if one.about.split()[0] in ("event", "decider") and one.wrong]
    assert str(finding).startswith(begins)
    assert holds in str(finding)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    by: list[Place] = []", "    by: list[Place] = []\n    tags: list[str] = Field(default_factory=list)"),
        ("    by: list[Place] = []", "    by: list[Place] = Field(default_factory=list)"),
        ("    till_id: str\n    amount: Decimal\n\n@", "    till_id: str\n    amount: Decimal = Decimal(1)\n\n@"),
    ],
    ids=["a new field that a factory fills", "a default becomes a factory's", "a default of a command"],
)
def test_a_change_that_every_reader_can_bear_is_recorded(load: Load, old: str, new: str) -> None:
    (finding,) = compare(lock_of(load(*LARGE)), lock_of(load(*LARGE, (old, new))))
    assert not finding.wrong
    assert "in a way that every reader can bear" in str(finding)


def test_a_lock_from_before_keys_were_in_it_only_lacks_them(load: Load) -> None:
    lock = lock_of(load())
    older = replace(
        lock, events={"tills.Paid.v1": {k: v for k, v in lock.events["tills.Paid.v1"].items() if k != "key"}}
    )
    assert [one.wrong for one in compare(older, lock)] == [False]


def test_a_state_with_slots_is_part_of_its_fold(load: Load) -> None:
    slots = ("@dataclass(frozen=True)\nclass Till", "@dataclass(frozen=True, slots=True)\nclass Till")
    begun = ("initial_state=Till()", "initial_state=Till(Decimal(5))")
    (finding,) = compare(lock_of(load(slots)), lock_of(load(slots, begun)))
    assert str(finding).startswith(FOLD)


def test_a_lowered_version_is_wrong(load: Load) -> None:
    (finding,) = compare(lock_of(load(("evolve=evolve)", "evolve=evolve, version=2)"))), lock_of(load()))
    assert str(finding) == "decider tills: version=1 is below 2, which was released; versions only rise"


def test_a_removed_command_is_only_recorded(load: Load) -> None:
    (gone, new) = findings(load, ("class Pay(Command,", 'class Pay(Command, name="Settle",'))
    assert [gone.wrong, new.wrong] == [False, False]
    assert "become dead letters" in gone.message
    assert new.about == "command tills.Settle.v1"


def test_a_lock_from_before_commands_were_in_it_is_read(load: Load) -> None:
    reported = json.loads(lock_of(load()).to_json())
    del reported["commands"]
    assert Lock.from_json(json.dumps(reported)).commands == {}


def test_a_new_version_of_an_event_keeps_the_old_schema_in_the_lock(load: Load) -> None:
    class_line = 'class Paid(Event, category="tills", key="till_id")'
    raised = (class_line, class_line.replace(")", ", version=2, upcasts={1: dict})"))
    released, now = lock_of(load()), lock_of(load(raised))
    assert [f.wrong for f in compare(released, now)] == [False]
    kept = now.with_history(released)
    assert set(kept.events) == {"tills.Paid.v1", "tills.Paid.v2"}
    assert compare(kept, now) == []


UPCAST_LINES = """
def cents(fields): return fields["amount"] * 100
def older(fields): return {**fields, "amount": cents(fields)}

class Paid(Event, category="tills", key="till_id", version=2, upcasts={1: older})"""


def test_an_upcast_and_its_helpers_are_part_of_every_fold_of_its_event(load: Load) -> None:
    query = 'views=[totals, QueryView("q", events=Paid, row=Row, key=lambda r: r.total, query="SELECT 1")]'
    upcast = ('\nclass Paid(Event, category="tills", key="till_id")', UPCAST_LINES)
    whole = (upcast, ("FoldView\n", "FoldView, QueryView\n"), ("views=[totals]", query))
    found = compare(lock_of(load(*whole)), lock_of(load(*whole, ("* 100", "* 1000"))))
    assert [one.about for one in found if one.wrong] == ["decider tills", "view q", "view totals"]


def test_the_level_of_a_logger_is_no_part_of_a_fold(load: Load) -> None:
    log = ("FEE =", "import logging\nLOG = logging.getLogger('tills')\nMORE = logging.LoggerAdapter(LOG, {})\nFEE =")
    app = load(log, ("return amount - FEE", "LOG.debug(MORE.name)\n    return amount - FEE"))
    before = lock_of(app)
    getLogger("tills").setLevel("DEBUG")
    assert lock_of(app) == before


def test_a_removed_event_class_is_wrong(load: Load) -> None:
    gone = "event tills.Paid.v1: was released and no class reads it any more, but the log may hold it for ever; "
    for changes, step in (
        (
            (("Paid", "Settled"), ("    note", "    why")),
            "bring the class back, or, if it never reached a log, delete it",
        ),
        ((("Paid", "Settled"),), "if Settled is its new name, add name='Paid' to the class Settled"),
    ):
        (wrong,) = [str(f) for f in findings(load, *changes) if f.about.startswith("event") and f.wrong]
        assert wrong.startswith(gone + step)


def test_a_lock_survives_its_file(load: Load) -> None:
    lock = lock_of(load())
    assert Lock.from_json(lock.to_json()) == lock
    assert Lock.from_json(lock.to_json()).to_json() == lock.to_json()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"leftfold.lock": 1, "deciders": 3}'])
def test_a_broken_lock_names_the_remedy(text: str) -> None:
    with pytest.raises(ConfigurationError, match="leftfold check --write"):
        Lock.from_json(text)


def test_hashes_do_not_depend_on_the_process(load: Load, tmp_path: Path) -> None:
    source = SOURCE.replace("FEE = ", "NAMES = frozenset({'a', 'b', 'c', 'd'})\nFEE = ").replace(
        "return amount - FEE", "return amount - FEE * len(NAMES)"
    )
    file = tmp_path / "hashed.py"
    file.write_text(source, "utf-8")
    script = (
        "from hashed import app; from leftfold.compatibility import lock_of; print(lock_of(app).deciders['tills'].fold)"
    )
    reported = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    assert len(reported) == 1


def test_the_lock_notices_a_process_that_means_something_else() -> None:
    def patient(given: Any, state: Checkout) -> Any:
        return react(given, state) if isinstance(given, Placed) else []

    def lock_with(process: Process[Any, Any, Any]) -> Lock:
        return lock_of(App("trade", deciders=[orders], processes=[process]))

    before = lock_with(checkout)
    assert Lock.from_json(before.to_json()) == before
    assert compare(before, lock_with(checkout)) == []
    changed = "process checkout: react, evolve or correlate changed since leftfold.lock; raise version= to 2"
    for one in (checkout_with(react=patient), checkout_with(correlate=lambda event: f"o/{event.order}")):
        (finding,) = compare(before, lock_with(one))
        assert str(finding).startswith(changed)
    (new,) = compare(replace(before, processes={}), before)
    assert "it begins at the first event and sends its commands for all of them" in str(new)
    assert not any(one.wrong for one in compare(before, lock_with(checkout_with(react=patient, version=2))))
