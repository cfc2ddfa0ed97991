"""How a view's registry, a bucket's checkpoint and its change stream are stored in Redis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import redis

from leftfold.errors import ContractError
from leftfold.model.position import Position
from leftfold.ports.flush import Checkpoint, Generation, Parked, Phase, Registry
from leftfold.ports.queries import Changed
from leftfold.redis.connection.errors import Command
from leftfold.redis.connection.protocol import hash_of
from leftfold.redis.connection.sync import RoutedClient
from leftfold.redis.keys import registry_key

__all__ = [
    "POSITION",
    "POSITION_KEPT",
    "addition",
    "change_registry",
    "changed_in",
    "decoded",
    "encode_checkpoint",
    "read_checkpoint",
]


POSITION, KEYS = b"position", b"keys"
POSITION_KEPT = ("", "")
"""The keys of the entry before changes that do not move the position: a space alone."""


def addition(stream: bytes, position: Position, keys: Iterable[str], most: int) -> Command:
    """The command that adds an entry to a change stream: the bucket's position and the encoded keys of changed rows.

    Encoded keys hold no space. An entry without keys begins a stream; one of a space alone stands before changes at the
    same position. One entry more than `most` is kept: a watch begins at an entry whose predecessor it sees.
    """
    fields = (POSITION, position.to_json().encode(), KEYS, " ".join(keys).encode())
    return (b"XADD", stream, b"MAXLEN", b"~", b"%d" % (most + 1), b"*", *fields)


def changed_in(entry: Sequence[Any]) -> Changed:
    """The change in an entry of a change stream."""
    id_, fields = entry[0], hash_of(entry[1])
    keys = fields[KEYS]
    return Changed(id_.decode(), Position.from_json(fields[POSITION]), tuple(keys.decode().split()), not keys)


def encode_checkpoint(checkpoint: Checkpoint) -> tuple[bytes, ...]:
    """A checkpoint as field names and values in turn, with every field."""
    parked = json.dumps({key: asdict(why) for key, why in checkpoint.parked.items()}) if checkpoint.parked else "{}"
    return (
        b"position", checkpoint.position.to_json().encode(),
        b"checksum", b"%032x" % checkpoint.checksum,
        b"token", checkpoint.token.encode(),
        b"phase", checkpoint.phase.value.encode(),
        b"rows", b"%d" % checkpoint.rows,
        b"parked", parked.encode(),
        b"time", checkpoint.time.encode(),
    )  # fmt: skip


def read_checkpoint(fields: Mapping[bytes, bytes], where: str) -> Checkpoint:
    """The checkpoint in a Redis hash.

    Args:
        where: named in errors.

    Raises:
        ContractError: a field is missing or unreadable.
    """
    try:
        return Checkpoint(
            position=Position.from_json(fields[b"position"]),
            checksum=int(fields[b"checksum"], 16),
            token=fields[b"token"].decode(),
            phase=Phase(fields[b"phase"].decode()),
            rows=int(fields[b"rows"]),
            parked={key: _parked(why) for key, why in json.loads(fields[b"parked"]).items()},
            time=fields[b"time"].decode(),
        )
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError, ContractError) as error:
        raise ContractError(f"the checkpoint of {where} is unreadable ({error!r}); rebuild the view") from error


_KNOWN = frozenset(Parked.__dataclass_fields__)


def _parked(why: Mapping[str, Any]) -> Parked:
    """A parked key; fields that only newer code knows are ignored."""
    return Parked(**{name: value for name, value in why.items() if name in _KNOWN})


_LIVE, _GENERATION = b"live:", b"g:"


def change_registry(
    client: RoutedClient,
    view: str,
    before: Registry,
    after: Registry,
    checkpoints: Sequence[bytes] = (),
    holds: Callable[[], bool] = lambda: True,
) -> bool:
    """Replaces the registry if it is still `before`; fields this version does not know stay as they are.

    Args:
        checkpoints: keys that must not change between the call of `holds` and the write.
    """
    old, new = _encoded(before), _encoded(after)
    removed = [field for field in old if field not in new]
    changed = [part for field, value in new.items() if old.get(field) != value for part in (field, value)]
    key = registry_key(view)
    try:
        with client.open_transaction(key) as pipe:
            pipe.watch(key, *checkpoints)
            if decoded(view, pipe.execute_command("HGETALL", key)) != before or not holds():
                return False
            pipe.multi()
            if removed:
                pipe.execute_command("HDEL", key, *removed)
            if changed:
                pipe.execute_command("HSET", key, *changed)
            pipe.execute()
    except redis.WatchError:
        return False
    return True


def _encoded(registry: Registry) -> dict[bytes, bytes]:
    fields = {_LIVE + hash_.encode(): id_.encode() for hash_, id_ in registry.live.items()}
    for id_, generation in registry.generations.items():
        fields[_GENERATION + id_.encode()] = _generation_json(generation).encode()
    return fields


def _generation_json(generation: Generation) -> str:
    return json.dumps(
        {
            "hash": generation.hash,
            "stream_keyed": generation.stream_keyed,
            "buckets": generation.buckets,
            "topics": dict(generation.topics),
            "phase": generation.phase.value,
            "created": generation.created,
            "since": generation.since,
            "name": generation.name,
            "fold": generation.fold,
            "folds": generation.folds,
            "superseded": generation.superseded,
            "until": generation.until,
            "ids": dict(generation.ids),
            "ends": generation.ends.offsets,
            "attempt": generation.attempt,
            "cut": generation.cut,
        }
    )


def decoded(view: str, fields: Mapping[bytes, bytes]) -> Registry:
    """The registry in a Redis hash."""
    generations, live = {}, {}
    for field, value in fields.items():
        if field.startswith(_LIVE):
            live[field.removeprefix(_LIVE).decode()] = value.decode()
        elif field.startswith(_GENERATION):
            id_ = field.removeprefix(_GENERATION).decode()
            generations[id_] = _generation(view, id_, value)
    return Registry(generations, live)


def _generation(view: str, id_: str, text: bytes) -> Generation:
    try:
        stored = json.loads(text)
        return Generation(
            view=view,
            id=id_,
            hash=str(stored["hash"]),
            stream_keyed=bool(stored["stream_keyed"]),
            buckets=int(stored["buckets"]),
            topics={str(topic): int(count) for topic, count in stored["topics"].items()},
            phase=Phase(stored["phase"]),
            created=str(stored["created"]),
            since=str(stored.get("since", "")),
            name=str(stored.get("name", "")),
            folds=_folds(stored),
            ends=Position.from_json(json.dumps(stored.get("ends", {}))),
            superseded=tuple(map(str, stored.get("superseded", ()))),
            until=str(stored.get("until", "")),
            ids={str(topic): str(id_) for topic, id_ in stored.get("ids", {}).items()},
            attempt=str(stored.get("attempt", "")),
            cut=str(stored.get("cut", "")),
        )
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError, ContractError) as error:
        raise ContractError(
            f"generation {id_} in view:{view} is unreadable ({error!r}); remove it: HDEL view:{view} g:{id_}"
        ) from error


def _folds(stored: Mapping[str, Any]) -> tuple[str, ...]:
    """The fold hashes of a generation; an older version wrote only one."""
    return tuple(str(fold) for fold in stored.get("folds", [stored.get("fold", "")]) if fold)
