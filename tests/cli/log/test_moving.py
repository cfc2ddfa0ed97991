"""Moving to another cluster, as docs/moving.md says, typed on two real brokers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from leftfold.kafka.administration.cluster import ClusterAdmin
from tests.cli.shell import ROOT, Shell, serving
from tests.servers import patient
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.faults]

PAGE = ROOT / "docs" / "moving.md"
APP = """
from pathlib import Path

from leftfold import App, Delivery, Reaction
from shop.events.carts import ItemAdded
from shop.projections.cart_summary import cart_summary
from shop.projections.customer_spend import customer_spend
from shop.services.carts.domain import carts


def note(event: ItemAdded, delivery: Delivery) -> None:
    with Path("called").open("a") as called:
        called.write(event.cart_id + "\\n")


noted = Reaction("noted", events=ItemAdded, act=note)
app = App("shop", partitions=4, deciders=[carts], views=[cart_summary, customer_spend], reactions=[noted])
"""
KEYS = [f"c-{number}" for number in range(8)]


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Another broker and Redis, by name."""
    other = tmp_path_factory.mktemp("other")
    assert Shell(other)("new", "elsewhere").code == 0
    shell = Shell(other / "elsewhere")
    (started,) = shell("up", "--json").rows()
    password = (other / "elsewhere" / ".leftfold" / "redis" / "password").read_text().strip()
    yield {"kafka": started["kafka"], "redis": started["redis"].replace("***", f":{password}")}
    shell("down")


def add(shell: Shell, key: str, *words: str) -> dict[str, Any]:
    body = {"cart_id": key, "product_id": "tea", "quantity": 1, "price": "2.50", "at": "2026-01-01T00:00:00Z"}
    sent = shell("send", "AddItem", json.dumps(body), "--json", *words).ok()
    return dict(sent.rows()[0])


def items(shell: Shell, *words: str) -> dict[str, int]:
    """How many items each cart has, by its row; none without a row."""
    got = {key: shell("get", "cart_summary", key, "--json", *words) for key in KEYS}
    return {key: one.rows()[0]["row"]["items"] for key, one in got.items() if one.code == 0}


def test_the_steps_of_the_page_give_the_same_streams_and_rows_in_another_cluster(
    up: Shell, new: dict[str, str]
) -> None:
    (up.place / "shop/services/carts/app.py").write_text(APP)
    there = ["--kafka", new["kafka"]]
    both = [*there, "--redis", new["redis"]]

    def called() -> list[str]:
        return (up.place / "called").read_text().split() if (up.place / "called").exists() else []

    with serving(up):
        for version in (1, 2):
            assert {add(up, key, "--id", f"{key}/{version}")["version"] for key in KEYS} == {version}
        wait_until(lambda: len(called()) == 2 * len(KEYS), "the reaction")
        wait_until(lambda: items(up) == dict.fromkeys(KEYS, 2), "the view")
    up("topics", "ensure", "--app", "shop.services.carts.app:app", *there).ok()
    (old,) = [row["address"] for row in up("status", "--json").rows() if row.get("name") == "kafka"]
    (page,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    up.python("-c", page + f"\ncopy({old!r}, {new['kafka']!r}, 'carts.events', 4)\n").ok()
    up("reactions", "begin", "noted", "--since", "end", "--yes", *there).ok()
    with serving(up, *both):
        assert add(up, KEYS[0], "--id", f"{KEYS[0]}/2", *there)["version"] == 2, "known by its id"
        assert {add(up, key, "--id", f"{key}/3", *there)["version"] for key in KEYS} == {3}
        wait_until(lambda: len(called()) >= 3 * len(KEYS), "the reaction")
        assert sorted(called()) == sorted(3 * KEYS)
        wait_until(lambda: items(up, "--redis", new["redis"]) == dict.fromkeys(KEYS, 3), "the view, folded again")
        up("verify", *both).ok()
        up("rebuild", "cart_summary", *there).ok()
        assert items(up) == dict.fromkeys(KEYS, 3), "in the Redis of before"
    with ClusterAdmin(patient(old)) as cluster:
        cluster.delete_records("carts.events", dict.fromkeys(range(4), 1))
    refused = up.python("-c", page + f"\ncopy({old!r}, {new['kafka']!r}, 'carts.events', 4)\n")
    assert refused.code == 1
    assert "AUTO_OFFSET_RESET" in refused.err, "a topic without its first events is not copied"
