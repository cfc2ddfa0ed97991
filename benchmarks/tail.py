"""The live projector against its peers: a sum per key, from the same topic, until everything is folded.

All have one process. The clock runs from the first event to the last, without any start. Ours stops when the last row
is in Redis; a peer's stops when its fold has seen the last event, before it has saved that. The topic was written in
transactions, with all headers; peers parse the JSON into a dict, ours into a pydantic event.

- **Ours** writes a row per key that anybody can query, with position, checksum and token in the same transaction, so
  that each event counts exactly once. It reads committed records.
- **Quix Streams** keeps state in RocksDB, beside the process, and a changelog topic; checkpoints every 5 s. Nobody
  else can query the state. It reads committed records; at least once, its default and its faster guarantee.
- **Bytewax** keeps state in memory. With recovery, which is on here since a sum that does not survive a restart is no
  view, it puts snapshots into SQLite every 10 s: a crash costs that much refolding, and nobody can query them. It
  reads committed records.
- **Faust** keeps its Table in memory, with a changelog topic; its own workers can query it, nobody else. It reads
  uncommitted records and counts at least once. It gets fewer events, because it takes so long.
"""

from __future__ import annotations

from benchmarks.figure import Figure
from benchmarks.peer import NotInstalled, run_peer
from benchmarks.purses import TOPIC, purses, shops, spendings, write_spendings
from benchmarks.tailing import catch_up, forget_views, rows_of
from leftfold.kafka.settings import KafkaSettings
from leftfold.local import Servers

__all__ = ["run"]

EVENTS, FEW = 300_000, 40_000
FEW_TOPIC = "purses.few"
GOALS = {"quix": 3.0, "bytewax": 3.0, "faust": 60.0}
SLOW = frozenset({"faust"})


def run(servers: Servers, events: int = EVENTS, few: int = FEW) -> list[Figure]:
    """The best of three for ours, and the better of two for each peer."""
    kafka = KafkaSettings(bootstrap_servers=servers.kafka)
    keys = {TOPIC: write_spendings(kafka, events), FEW_TOPIC: write_spendings(kafka, few, FEW_TOPIC)}
    ours = max(_folded(servers, events) for _ in range(3))
    keyed = max(_cross_folded(servers, events) for _ in range(2))
    note = f"{events:,} events of {keys[TOPIC]:,} keys"
    figures = [
        Figure("tail.events", ours, "events/s", note=note),
        Figure("tail.events_by_other_key", keyed, "events/s", note=f"{note}, one of which is not the stream's"),
    ]
    for name, goal in GOALS.items():
        topic, count = (FEW_TOPIC, few) if name in SLOW else (TOPIC, events)
        figures.append(_against(name, servers, ours, goal, topic, count, keys[topic]))
    return figures


def _folded(servers: Servers, events: int) -> float:
    forget_views(servers)
    rate = catch_up(servers, purses, events)
    _check_sum(servers, events)
    return rate


def _cross_folded(servers: Servers, events: int) -> float:
    forget_views(servers)
    return catch_up(servers, shops, events)


def _check_sum(servers: Servers, events: int) -> None:
    """Whether the rows add up to what was written."""
    found, wanted = sum(row.cents for row in rows_of(servers, purses)), sum(e.cents for _, e in spendings(events))
    if found != wanted:
        raise SystemExit(f"the rows add up to {found:,}, not {wanted:,}")


def _against(name: str, servers: Servers, ours: float, goal: float, topic: str, events: int, keys: int) -> Figure:
    """The figure of one peer; without a goal when it cannot be installed here."""
    try:
        runs = [run_peer(name, servers.kafka, topic, events, attempt) for attempt in range(2)]
    except NotInstalled as error:
        return Figure(f"tail.{name}", ours, "events/s", note=f"not compared, it cannot be installed here: {error}")
    for one in runs:
        if (one.events, one.keys) != (events, keys):
            raise SystemExit(f"{name} folded {one.events:,} events of {one.keys:,} keys, not {events:,} of {keys:,}")
    note = f"peer on {events:,} events of {keys:,} keys"
    return Figure(f"tail.{name}", ours, "events/s", peer=max(one.rate for one in runs), goal=goal, note=note)
