"""The end of a bulk load: marks say sealed from one moment on, and late chunks find no `bulk` any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import redis

from leftfold.errors import ContractError, Fenced, InfrastructureError
from leftfold.flush import Generation, Mark, Phase
from leftfold.redis.changestream import addition
from leftfold.redis.commands import Client, Pipeline
from leftfold.redis.keys import FINISHED, BucketKeys
from leftfold.redis.marks import encode_mark

__all__ = ["check_complete", "seal"]

_ATTEMPTS = 5


def check_complete(generation: Generation, marks: Mapping[int, Mark]) -> None:
    """Raises ContractError when the marks are not those of all buckets."""
    if set(marks) != set(range(generation.buckets)):
        raise ContractError(f"{generation.view} {generation.id} has {generation.buckets} buckets, not {sorted(marks)}")


def seal(client: Client, generation: Generation, marks: Mapping[int, Mark], history: int) -> None:
    """Writes the marks of some buckets with the phase `sealed`, in one transaction; in a cluster of one bucket.

    Their change streams begin here. A bucket needs no other one for its seal: a late chunk is written under a WATCH of
    its own bucket's mark, and nobody follows the generation before the registry says that all of it is sealed.

    Raises:
        Fenced: a bucket is not `bulk` any more.
        InfrastructureError: a bucket holds another number of rows than its mark says; something was lost or unfinished.
    """
    for _ in range(_ATTEMPTS):
        try:
            with client.pipeline() as pipe:
                _check(pipe, generation, marks)
                pipe.multi()
                for bucket, mark in marks.items():
                    fields = encode_mark(replace(mark, phase=Phase.SEALED))
                    keys = BucketKeys(generation, bucket)
                    pipe.execute_command("HSET", keys.mark, *fields)
                    pipe.execute_command("HDEL", keys.mark, FINISHED)
                    pipe.execute_command(*addition(keys.changes, mark.position, (), history))
                pipe.execute()
                return
        except redis.WatchError:
            continue
    raise InfrastructureError(f"{generation.view} {generation.id} is still being written; end its tasks, then seal it")


def _check(pipe: Pipeline, generation: Generation, marks: Mapping[int, Mark]) -> None:
    places = {bucket: BucketKeys(generation, bucket) for bucket in marks}
    pipe.watch(*(name for keys in places.values() for name in (keys.mark, keys.listed)))
    for bucket, keys in places.items():
        where = f"bucket {bucket} of {generation.view} {generation.id}"
        phase: Any = pipe.execute_command("HGET", keys.mark, "phase")
        if phase != Phase.BULK.value.encode():
            raise Fenced(
                f"{where} is {phase.decode() if phase else 'gone'}, not bulk; someone else sealed or removed it"
            )
        rows: Any = pipe.execute_command("ZCARD", keys.listed)
        if rows != marks[bucket].rows:
            raise InfrastructureError(
                f"{where} holds {rows} rows where its tasks wrote {marks[bucket].rows}; "
                f"build it again: leftfold rebuild {generation.view}"
            )
