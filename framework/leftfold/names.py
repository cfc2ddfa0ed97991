"""The names on the wire: topics, consumer groups, groups in the view store. Changed only with a migration."""

from __future__ import annotations

__all__ = [
    "begun", "commands", "dead", "events", "group", "is_view_name", "reacting", "rebuilds", "replies",
    "routing", "skipped", "state", "streaming", "streams", "tails", "time",
]  # fmt: skip


def commands(category: str) -> str:
    """The topic of a category's commands."""
    return f"{category}.commands"


def events(category: str) -> str:
    """The topic of a category's events: never compacted, kept for ever."""
    return f"{category}.events"


def state(category: str, version: int) -> str:
    """The compacted topic of a category's stream states, one per decider version."""
    return f"{category}.state.v{version}"


def dead(category: str) -> str:
    """The topic of commands that nobody can decide."""
    return f"{category}.dead"


def skipped(category: str) -> str:
    """The compacted topic of events that workers pass over, made when somebody first has one passed over."""
    return f"{category}.skipped"


def replies(app: str) -> str:
    """The topic on which clients of an App wait for answers."""
    return f"{app}.replies"


def group(app: str, category: str) -> str:
    """The consumer group of the workers of a category."""
    return f"leftfold.{app}.{category}"


def time(process: str) -> str:
    """The topic in which the routers of a process say what time it is."""
    return f"{process}.time"


def reacting(app: str, reaction: str) -> str:
    """The consumer group of those who act for a reaction: its offsets say what is done."""
    return f"leftfold.{app}.{reaction}.reaction"


def routing(app: str, process: str) -> str:
    """The consumer group of the routers of a process."""
    return f"leftfold.{app}.{process}.router"


def begun(reaction: str) -> str:
    """The compacted topic that says where a reaction began, and which of its parked events were tried again."""
    return f"{reaction}.begun"


def streaming(app: str, stream: str, *generations: str) -> str:
    """The consumer group of a stream of the user's own, and what its changelogs begin with."""
    return ".".join(["leftfold", app, stream, "stream", *generations])


def is_view_name(name: str) -> bool:
    """Whether a view may be called so: it is part of keys and of what people type."""
    return bool(name) and all(c.isalnum() or c in "_-" for c in name)


def tails(view: str, hash_: str) -> str:
    """The group in which the tails of a view see each other that follow the same generations, those of a hash."""
    return f"tails:{view}:{hash_}"


def coders(view: str, hash_: str, fold: str) -> str:
    """The group in which those tails of a view show themselves that fold with one code."""
    return f"tails:{view}:{hash_}:{fold}"


def streams(view: str, hash_: str) -> str:
    """The group in which a stream that keeps a view of a schema hash shows that it is at work."""
    return f"streams:{view}:{hash_}"


def rebuilds(view: str) -> str:
    """The group in which a rebuild of a view shows that it is at work."""
    return f"rebuilds:{view}"
