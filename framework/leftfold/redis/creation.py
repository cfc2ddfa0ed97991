"""The marks of a new generation: all of them or none, whichever servers they are on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import redis

from leftfold.flush import Generation, Mark, Phase
from leftfold.redis.changestream import addition
from leftfold.redis.commands import Client
from leftfold.redis.keys import BucketKeys
from leftfold.redis.marks import encode_mark

__all__ = ["create_each", "create_marks"]


def create_marks(client: Client, generation: Generation, marks: Mapping[int, Mark], history: int) -> bool:
    """Writes marks in one transaction if none of them is there; False when one is.

    The change stream of a bucket that is not filled in bulk begins here.
    """
    places = {bucket: BucketKeys(generation, bucket) for bucket in marks}
    names = [keys.mark for keys in places.values()]
    try:
        with client.pipeline() as pipe:
            pipe.watch(*names)
            if pipe.execute_command("EXISTS", *names):
                return False
            pipe.multi()
            for bucket, mark in marks.items():
                pipe.execute_command("HSET", places[bucket].mark, *encode_mark(mark))
                if mark.phase is not Phase.BULK:
                    pipe.execute_command(*addition(places[bucket].changes, mark.position, (), history))
            pipe.execute()
    except redis.WatchError:
        return False
    return True


def create_each(
    client: Client,
    generation: Generation,
    marks: Mapping[int, Mark],
    history: int,
    settle: Callable[[Callable[[], Any]], Any],
) -> bool:
    """Writes marks one by one, and takes back its own when one was there already.

    Nobody can have flushed into those that are taken back: the generation is not in the registry yet.

    Args:
        settle: does a piece of work on one bucket, again while its slot moves.
    """
    mine: list[BucketKeys] = []
    for bucket, mark in marks.items():
        if not settle(partial(create_marks, client, generation, {bucket: mark}, history)):
            break
        mine.append(BucketKeys(generation, bucket))
    else:
        return True
    for keys in mine:
        settle(partial(client.execute_command, "UNLINK", keys.mark, keys.changes))
    return False
