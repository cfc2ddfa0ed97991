"""The marks of a new generation: all of them or none, whichever servers they are on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import redis

from leftfold.flush import Generation, Mark
from leftfold.redis.commands import Client
from leftfold.redis.keys import BucketKeys
from leftfold.redis.marks import encode_mark

__all__ = ["create_each", "create_marks"]


def create_marks(client: Client, generation: Generation, marks: Mapping[int, Mark]) -> bool:
    """Writes marks in one transaction if none of them is there; False when one is."""
    names = {bucket: BucketKeys(generation, bucket).mark for bucket in marks}
    try:
        with client.pipeline() as pipe:
            pipe.watch(*names.values())
            if pipe.execute_command("EXISTS", *names.values()):
                return False
            pipe.multi()
            for bucket, mark in marks.items():
                pipe.execute_command("HSET", names[bucket], *encode_mark(mark))
            pipe.execute()
    except redis.WatchError:
        return False
    return True


def create_each(
    client: Client, generation: Generation, marks: Mapping[int, Mark], settle: Callable[[Callable[[], Any]], Any]
) -> bool:
    """Writes marks one by one, and takes back its own when one was there already.

    Nobody can have flushed into those that are taken back: the generation is not in the registry yet.

    Args:
        settle: does a piece of work on one bucket, again while its slot moves.
    """
    mine: list[bytes] = []
    for bucket, mark in marks.items():
        if not settle(partial(create_marks, client, generation, {bucket: mark})):
            break
        mine.append(BucketKeys(generation, bucket).mark)
    else:
        return True
    for name in mine:
        settle(partial(client.execute_command, "UNLINK", name))
    return False
