"""Processes of reactions are killed on the way: every event has its effect, and only one where keys are remembered."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.ports.message_codec import header
from tests.domains.visits import Paid
from tests.reactions.hooks import CAREFUL, FORGETFUL, NAMES, app
from tests.reactions.reacting import EVENTS, write
from tests.reactions.receiver import Receiver, receiving
from tests.reactions.shell import Shell
from tests.settled import committed
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.faults]

VISITS, EACH = 4, 3
REFUSED = "refused"


class Scene:
    """The receiver, `leftfold run`, and the events that it acts on."""

    def __init__(self, settings: KafkaSettings, receiver: Receiver, run: subprocess.Popen[bytes], shell: Shell) -> None:
        self.settings, self.receiver, self.run, self.tell = settings, receiver, run, shell.tell
        self.status = partial(shell.status, "reaction")
        events = [r for r in committed(settings, EVENTS) if header(r.headers, "ce_type") == b"visits.Paid.v1"]
        self.ids = {header(r.headers, "ce_id").decode(): (r.key or b"").decode() for r in events}
        self.good = {id_ for id_, visit in self.ids.items() if visit != REFUSED}

    def effects(self, name: str) -> dict[str, str]:
        """What the receiver has done for a reaction: the event of each key."""
        return {k: e for k, e in self.receiver.effects[f"/{name}/effect"].items() if e in self.good}


class Fate:
    """Tells each reaction when to die, and refuses one visit until `is_repaired` is set."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.is_repaired = False
        self._deaths = {"/before/before": [3, 8], "/after/effect": [2, 7], f"/{FORGETFUL}/effect": [2, 7]}
        """By path the requests from which on the next sender dies, in order."""

    def judge(self, path: str, event: str, number: int) -> str:
        """Death comes before an effect, or right behind one; what is refused has none."""
        if path.endswith("/effect") and event in self.refused and not self.is_repaired:
            return "refuse"
        if (left := self._deaths.get(path)) and number >= left[0]:
            left.pop(0)
            return "die"
        return "ok"


@pytest.fixture(scope="module")
def fate() -> Fate:
    return Fate()


@pytest.fixture(scope="module")
def scene(settings: KafkaSettings, fate: Fate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    ensure(app, settings)
    for number in range(1, EACH + 1):
        write(settings, *(Paid(visit=f"v{visit}", number=number) for visit in range(VISITS)))
    write(settings, Paid(visit=REFUSED))
    with receiving(fate.judge) as receiver:
        place, hooks = tmp_path_factory.mktemp("run"), {"TESTS_HOOKS_URL": receiver.url}
        shell = Shell("tests.reactions.hooks:app", settings, place, hooks)
        with shell.running(*NAMES) as run:
            scene = Scene(settings, receiver, run, shell)
            fate.refused = scene.ids.keys() - scene.good
            yield scene


def all_done(scene: Scene, name: str) -> bool:
    return set(scene.effects(name).values()) == scene.good and scene.status(name)["lag"] == 0


def test_each_event_has_one_effect_wherever_its_sender_is_killed(scene: Scene) -> None:
    for name in CAREFUL:
        wait_until(
            lambda name=name: all_done(scene, name),  # type: ignore[misc]
            lambda name=name: f"{name}: {scene.status(name)} {scene.receiver.posts}",  # type: ignore[misc]
        )
        effects = scene.effects(name)
        assert Counter(effects.values()) == Counter(scene.good), "one key for each event"
    assert scene.receiver.deaths["/before/before"] == 2
    assert scene.receiver.deaths["/after/effect"] == 2
    assert scene.receiver.posts["/after/effect"] > len(scene.ids), "what was done is done again"


def test_with_other_keys_each_time_a_receiver_does_it_twice(scene: Scene) -> None:
    wait_until(lambda: all_done(scene, FORGETFUL), lambda: f"{scene.status(FORGETFUL)} {scene.receiver.posts}")
    assert max(Counter(scene.effects(FORGETFUL).values()).values()) > 1


def test_status_tells_what_is_parked_and_retry_tries_it_again(scene: Scene, fate: Fate) -> None:
    wait_until(lambda: scene.status("parking")["parked"] == 1, lambda: f"parking: {scene.status('parking')}")
    assert scene.status("parking")["running"] == 1
    code, rows = scene.tell("reactions", "parked", "parking")
    assert code == 1
    assert [(row["key"], row["tries"]) for row in rows] == [(REFUSED, "2")]
    assert "the receiver says 503" in rows[0]["why"]
    code, _ = scene.tell("retry", "parking")
    assert (code, scene.status("parking")["parked"]) == (1, 1)
    fate.is_repaired = True
    code, (reported,) = scene.tell("retry", "parking")
    assert (code, reported["done"], reported["parked"]) == (0, 1, {})
    assert scene.status("parking")["parked"] == 0
    assert scene.tell("reactions", "parked", "parking") == (0, [])
    effects = scene.receiver.effects["/parking/effect"]
    parked = {header(r.headers, "idempotency_key").decode() for r in committed(scene.settings, names.dead("parking"))}
    assert [key for key, event in effects.items() if event in fate.refused] == list(parked)


def test_a_reaction_that_runs_is_not_begun_elsewhere_and_one_that_is_stopped_may_be(scene: Scene) -> None:
    before = scene.receiver.posts["/parking/effect"]
    assert scene.tell("reactions", "begin", "parking", "--since", "start", "--yes")[0] == 78
    scene.run.send_signal(signal.SIGINT)
    assert scene.run.wait(240.0) == 130
    code, (reported,) = scene.tell("reactions", "begin", "parking", "--since", "start", "--yes")
    assert (code, set(reported["offsets"].values())) == (0, {0})
    assert scene.status("parking")["lag"] > 0
    assert scene.tell("reactions", "begin", "parking", "--since", "end", "--yes")[0] == 0
    assert scene.status("parking")["lag"] == 0
    assert scene.tell("reactions", "begin", "parking", "--since", "noon", "--yes")[0] == 2
    assert scene.receiver.posts["/parking/effect"] == before
