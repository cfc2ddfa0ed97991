"""Positions as people type them."""

from __future__ import annotations

import re

from leftfold.cli.failures import Usage
from leftfold.errors import ContractError
from leftfold.position import Position

__all__ = ["read_position"]

_TOPIC = re.compile(r"(?P<topic>[\w.-]+)\[(?P<offsets>\d+:\d+(,\d+:\d+)*)\]")


def read_position(text: str) -> Position:
    """A position as `leftfold send` prints it, `baskets.events[3:17]`, or as `--json` does, `{"topic": {"3": 17}}`.

    Raises:
        Usage: it is neither.
    """
    if text.lstrip().startswith("{"):
        try:
            return Position.from_json(text)
        except ContractError as error:
            raise Usage(str(error)) from error
    found: dict[str, dict[int, int]] = {}
    for part in text.split():
        match = _TOPIC.fullmatch(part)
        if match is None:
            raise Usage(f"--after {text!r} is no position; it looks like 'baskets.events[3:17]'")
        pairs = (pair.split(":") for pair in match["offsets"].split(","))
        found[match["topic"]] = {int(partition): int(offset) for partition, offset in pairs}
    return Position(found)
