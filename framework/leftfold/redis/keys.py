"""The names of everything in Redis: part of the format, changed only with a migration."""

from __future__ import annotations

from leftfold.flush import Generation

__all__ = ["FINISHED", "BucketKeys", "entry", "members_key", "registry_key"]


FINISHED = b"finished"
"""The field of a bulk bucket's mark that says what is in it once it is whole."""


def registry_key(view: str) -> bytes:
    """The hash with a view's generations and live pointers."""
    return b"view:" + view.encode()


def members_key(group: str) -> bytes:
    """The sorted set of who is at work in a group."""
    return b"members:" + group.encode()


class BucketKeys:
    """The keys of one bucket; they share a hash tag, so a cluster keeps them in one slot."""

    __slots__ = ("listed", "mark", "rows")

    def __init__(self, generation: Generation, bucket: int) -> None:
        base = f"v:{{{generation.view}:{generation.id}:{bucket}}}".encode()
        self.mark, self.listed, self.rows = base + b"@", base + b"#", base + b":"

    def row(self, key: str) -> bytes:
        """The hash of a row, by its encoded key."""
        return self.rows + key.encode()

    def index(self, field: str) -> bytes:
        """The sorted set of an index; its members are made by `entry`."""
        return self.listed + field.encode()


def entry(value: str, key: str) -> bytes:
    """A member of an index: the ordered value, then the row key, which never holds a NUL."""
    return b"%b\0%b" % (value.encode(), key.encode())
