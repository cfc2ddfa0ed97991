"""The notebook in the documents runs as it stands, on real servers, and its figures come to the cent."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.local import embedded
from services.baskets.app import app
from services.baskets.history import history
from services.baskets.truth import truth
from tests.servers import patient
from tests.threads import Background, deciding
from tests.waiting import WAIT_SECONDS

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.faults]

ROOT = Path(__file__).parents[3]
NOTEBOOK = ROOT / "docs" / "notebooks" / "archive.ipynb"
WEEKS = range(1, 3)


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two weeks of baskets on servers of their own, which the environment names."""
    with embedded(tmp_path / "servers", want=frozenset({"kafka"})) as servers:
        settings = patient(servers.kafka)
        ensure(app, settings)
        ids, commands = zip(*history(weeks=WEEKS), strict=True)
        worker = Background(deciding(app, "baskets", KafkaClientSupplier(settings)))
        with worker, KafkaClient(app.name, settings) as client:
            client.send_many(list(commands), ids=list(ids), timeout=WAIT_SECONDS)
        monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", servers.kafka)
        monkeypatch.setenv("LEFTFOLD_ARCHIVE_DIR", str(tmp_path / "archive"))
        yield


@pytest.mark.usefixtures("loaded")
def test_the_notebook_runs_as_it_stands(tmp_path: Path) -> None:
    """In a process of its own, since it ends the Spark session that it makes."""
    copy = Path(shutil.copy(NOTEBOOK, tmp_path))
    command = [sys.executable, "-m", "tests.archive.spark.notebook", str(copy)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=WAIT_SECONDS)
    assert done.returncode == 0, done.stderr
    outputs = [output for cell in json.loads(copy.read_text())["cells"] for output in cell.get("outputs", ())]
    drawn = [base64.b64decode(output["data"]["image/png"]) for output in outputs if "data" in output]
    assert [png[:4] for png in drawn] == [b"\x89PNG"] * 3
    chain = truth(WEEKS).chain
    printed = "".join(line for output in outputs for line in output.get("text", ()))
    assert f"{chain.baskets:,} baskets, {chain.sales_value:,.2f} dollars" in printed
    assert re.search(rf"baskets\.ItemAdded +{chain.lines}\n", printed)
