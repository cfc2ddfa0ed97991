"""The registry of a view: one hash, changed by compare-and-set."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import redis

from leftfold.errors import ContractError
from leftfold.flush import Generation, Phase, Registry
from leftfold.position import Position
from leftfold.redis.commands import Client, Pipeline
from leftfold.redis.keys import registry_key

__all__ = ["change_registry", "decoded", "read_registry"]

_LIVE, _GENERATION = b"live:", b"g:"


def read_registry(client: Client | Pipeline, view: str) -> Registry:
    """The registry as it stands."""
    fields: Any = client.execute_command("HGETALL", registry_key(view))
    return decoded(view, fields)


def change_registry(
    client: Client,
    view: str,
    before: Registry,
    after: Registry,
    marks: Sequence[bytes] = (),
    holds: Callable[[], bool] = lambda: True,
) -> bool:
    """Replaces the registry if it is still `before`; fields this version does not know stay as they are.

    Args:
        marks: keys that must not change from when `holds` is asked until this lands.
    """
    old, new = _encoded(before), _encoded(after)
    gone = [field for field in old if field not in new]
    moved = [part for field, value in new.items() if old.get(field) != value for part in (field, value)]
    key = registry_key(view)
    try:
        with client.pipeline() as pipe:
            pipe.watch(key, *marks)
            if read_registry(pipe, view) != before or not holds():
                return False
            pipe.multi()
            if gone:
                pipe.execute_command("HDEL", key, *gone)
            if moved:
                pipe.execute_command("HSET", key, *moved)
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
        }
    )


def decoded(view: str, fields: Mapping[bytes, bytes]) -> Registry:
    """The registry behind its hash."""
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
        told = json.loads(text)
        return Generation(
            view=view,
            id=id_,
            hash=str(told["hash"]),
            stream_keyed=bool(told["stream_keyed"]),
            buckets=int(told["buckets"]),
            topics={str(topic): int(count) for topic, count in told["topics"].items()},
            phase=Phase(told["phase"]),
            created=str(told["created"]),
            since=str(told.get("since", "")),
            name=str(told.get("name", "")),
            folds=_folds(told),
            ends=Position.from_json(json.dumps(told.get("ends", {}))),
            superseded=tuple(map(str, told.get("superseded", ()))),
            until=str(told.get("until", "")),
            ids={str(topic): str(id_) for topic, id_ in told.get("ids", {}).items()},
            attempt=str(told.get("attempt", "")),
        )
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError, ContractError) as error:
        raise ContractError(
            f"generation {id_} in view:{view} is unreadable ({error!r}); remove it: HDEL view:{view} g:{id_}"
        ) from error


def _folds(told: Mapping[str, Any]) -> tuple[str, ...]:
    """The codes that folded a generation; an older version names only one."""
    return tuple(str(fold) for fold in told.get("folds", [told.get("fold", "")]) if fold)
