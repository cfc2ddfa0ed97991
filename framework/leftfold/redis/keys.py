"""The keys of everything in Redis: part of the format, changed only with a migration."""

from __future__ import annotations

import re

from leftfold.model.keys import is_view_name
from leftfold.ports.flush import Generation

__all__ = [
    "FINISHED",
    "OF_BUCKETS",
    "REGISTRIES",
    "BucketKeys",
    "bucket_of",
    "channel",
    "entry",
    "escaped",
    "members_key",
    "registered_view",
    "registry_key",
    "split_entry",
]

# Within an ordered value a NUL is followed by a DEL, which sorts behind every row key: a NUL alone ends the value.
ESCAPED_NUL = b"\0\x7f"
OF_BUCKETS = b"v:{*}[@#~]"
"""SCAN pattern that finds at least one key of every bucket: checkpoint, row list or changes."""
_OF_BUCKET = re.compile(rb"v:\{([^:{}]+):([^:{}]+):(\d+)\}[@#~]")
REGISTRIES = b"view:*"
"""SCAN pattern that finds the registry of every view."""
FINISHED = b"finished"
"""The field of a bulk bucket's checkpoint with its result, written once the bucket is complete."""


def registry_key(view: str) -> bytes:
    """The key of the hash with a view's generations and live pointers."""
    return b"view:" + view.encode()


def registered_view(key: bytes) -> str | None:
    """The view of a key that `REGISTRIES` found; None when the key is not Leftfold's."""
    name = key.removeprefix(b"view:").decode(errors="replace")
    return name if is_view_name(name) else None


def members_key(group: str) -> bytes:
    """The key of the sorted set with the members of a group."""
    return b"members:" + group.encode()


class BucketKeys:
    """The keys of one bucket; they share a hash tag, so a cluster keeps them in one slot."""

    __slots__ = ("changes", "checkpoint", "listed", "rows")

    def __init__(self, generation: Generation, bucket: int) -> None:
        base = f"v:{{{generation.view}:{generation.id}:{bucket}}}".encode()
        self.checkpoint, self.listed, self.rows, self.changes = base + b"@", base + b"#", base + b":", base + b"~"

    def row(self, key: str) -> bytes:
        """The key of a row's hash, by its encoded row key."""
        return self.rows + key.encode()

    def index(self, field: str) -> bytes:
        """The key of an index, a sorted set with members made by `entry`."""
        return self.listed + field.encode()


def bucket_of(key: bytes) -> tuple[str, str, int] | None:
    """The view, generation id and bucket of a key that `OF_BUCKETS` found; None when the key is not Leftfold's."""
    found = _OF_BUCKET.fullmatch(key)
    return None if found is None else (found[1].decode(), found[2].decode(), int(found[3]))


def channel(view: str, generation_id: str) -> bytes:
    """The pub/sub channel that announces the flushes of a generation."""
    return f"v:{{{view}:{generation_id}}}!".encode()


def escaped(value: str) -> bytes:
    """An ordered value in the form that index entries hold."""
    return value.encode().replace(b"\0", ESCAPED_NUL)


def entry(value: str, key: str) -> bytes:
    """A member of an index: the ordered value, a NUL, then the row key, which never holds a NUL."""
    return b"%b\0%b" % (escaped(value), key.encode())


def split_entry(member: bytes) -> tuple[str, str]:
    """The ordered value and the row key of a member of an index."""
    value, _, key = member.rpartition(b"\0")
    return value.replace(ESCAPED_NUL, b"\0").decode(), key.decode()
