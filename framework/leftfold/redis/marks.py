"""How a bucket's mark is written as a hash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from leftfold.errors import ContractError
from leftfold.flush import Mark, Parked, Phase
from leftfold.position import Position

__all__ = ["encode_mark", "read_mark"]


def encode_mark(mark: Mark) -> tuple[bytes, ...]:
    """Field names and values in turn, every field of the mark."""
    parked = json.dumps({key: asdict(why) for key, why in mark.parked.items()}) if mark.parked else "{}"
    return (
        b"position", mark.position.to_json().encode(),
        b"checksum", b"%032x" % mark.checksum,
        b"token", mark.token.encode(),
        b"phase", mark.phase.value.encode(),
        b"rows", b"%d" % mark.rows,
        b"parked", parked.encode(),
        b"time", mark.time.encode(),
    )  # fmt: skip


def read_mark(fields: Mapping[bytes, bytes], where: str) -> Mark:
    """The mark behind a hash.

    Args:
        where: named in errors.

    Raises:
        ContractError: a field is missing or unreadable.
    """
    try:
        return Mark(
            position=Position.from_json(fields[b"position"]),
            checksum=int(fields[b"checksum"], 16),
            token=fields[b"token"].decode(),
            phase=Phase(fields[b"phase"].decode()),
            rows=int(fields[b"rows"]),
            parked={key: Parked(**why) for key, why in json.loads(fields[b"parked"]).items()},
            time=fields[b"time"].decode(),
        )
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError, ContractError) as error:
        raise ContractError(f"the mark of {where} is unreadable ({error!r}); rebuild the view") from error
