"""Where the demo may write, and the picture at its end."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from leftfold import memory
from leftfold.engine.causation import Trace, step_of
from services.baskets.commands import CheckOut
from services.baskets.demo.__main__ import main
from services.baskets.demo.picture import CONSOLE, write_picture
from tests.reference.chain import AT, chain, shop, stock

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    "name", ["LEFTFOLD_APP", "LEFTFOLD_DATA", "LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "LEFTFOLD_REDIS_URL"]
)
def test_the_demo_never_writes_to_servers_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for word in [word for word in os.environ if word.startswith("LEFTFOLD_")]:
        monkeypatch.delenv(word)
    monkeypatch.setenv(name, "elsewhere")
    monkeypatch.chdir(tmp_path)
    # Data that is not the demo's is refused, too, but later.
    (tmp_path / ".leftfold" / "data").mkdir(parents=True)
    with pytest.raises(SystemExit, match=f"unset {name}$"):
        main()


def test_the_picture_of_a_journey_has_a_box_for_each_record_and_shows_itself_without_the_console(
    tmp_path: Path,
) -> None:
    with memory(chain, now=AT) as world:
        for command in (*stock("milk"), *shop("b", "milk", "caviar")):
            world.client.send(command, id="checkout" if isinstance(command, CheckOut) else None)
        names = [name for name in world.log.topics if name.endswith((".commands", ".events"))]
        steps = [step for name in names for part in world.log.of(name) for step in map(step_of, part) if step]
    steps = [step for step in steps if step.correlation == "checkout"]
    write_picture(tmp_path / "journey.svg", steps, "checkout")
    drawn = ET.parse(tmp_path / "journey.svg").getroot()  # noqa: S314  # it is our own
    assert drawn.tag == f"{SVG}svg"
    assert ".lf-node" in (drawn.findtext(f"{SVG}style") or "")
    boxes = [box for box in drawn.iter() if "lf-node" in box.get("class", "").split()]
    nodes = [node for node, _ in Trace(steps).walk()]
    assert len(boxes) == len(nodes) > 10
    assert all(box.get("href", "").startswith(f"{CONSOLE}/") for box in boxes)
    edges = [edge for edge in drawn.iter() if "lf-edge" in edge.get("class", "").split()]
    assert len(edges) == len(nodes) - 1
    assert [box.get("class") for box in boxes if box.get("class") != "lf-node"] == [
        "lf-node lf-chosen",
        "lf-node lf-bad",
    ]
