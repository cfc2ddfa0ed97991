"""Removing a bucket without looking at anybody else's keys."""

from __future__ import annotations

from typing import Any

from leftfold.redis.commands import Client
from leftfold.redis.keys import BucketKeys

__all__ = ["unlink_bucket"]

_CHUNK = 500


def unlink_bucket(client: Client, keys: BucketKeys) -> None:
    """Removes every key of a bucket; when interrupted, running it again removes the rest.

    The mark goes first, which fences every writer; then the indexes, which are named after fields of the rows.
    """
    client.execute_command("UNLINK", keys.mark, keys.changes)
    while listed := _first(client, keys):
        rows = [keys.rows + key for key in listed]
        fields: Any = client.execute_command("HKEYS", rows[0])
        with client.pipeline() as pipe:
            if fields:
                pipe.execute_command("UNLINK", *(keys.listed + field for field in fields))
            pipe.execute_command("UNLINK", *rows)
            pipe.execute_command("ZREM", keys.listed, *listed)
            pipe.execute()


def _first(client: Client, keys: BucketKeys) -> list[bytes]:
    listed: list[bytes] = client.execute_command("ZRANGE", keys.listed, 0, _CHUNK - 1)
    return listed
