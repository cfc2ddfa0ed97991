"""Runs the benchmarks: `python -m benchmarks [NAME...]`; figures go to benchmarks/results/latest.json."""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from benchmarks.figure import Figure
from leftfold.local import LocalSettings, embedded

BENCHMARKS = {
    "commands": "commands", "latency": "commands", "sink": "store", "async_reads": "store", "waiting": "store",
    "projector": "projector", "freshness": "projector", "overhead": "projector", "rebuild": "rebuild",
    "together": "rebuild", "archive": "rebuild", "streaming": "streaming", "slope": "rebuild",
    "processes": "processes", "saga": "processes",
    "gateway": "gateway", "telemetry": "telemetry", "survey": "telemetry", "year": "year",
}  # fmt: skip
"""The benchmarks in their order, each a function of its name, and their modules."""
RESULTS = Path(__file__).parent / "results" / "latest.json"


def main() -> None:
    """Runs what is asked for, each benchmark on servers of its own, and keeps the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(BENCHMARKS), metavar="NAME", help=", ".join(BENCHMARKS))
    figures: list[Figure] = []
    for name in parser.parse_args().names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        benchmark = getattr(importlib.import_module(f"benchmarks.{BENCHMARKS[name]}"), name)
        production = LocalSettings(kafka_memory="1g", kafka_jvm=("-XX:+UseG1GC",))  # as Kafka's own script starts it
        with (
            tempfile.TemporaryDirectory(prefix=f"leftfold-{name}-") as folder,
            embedded(Path(folder), settings=production) as servers,
        ):
            figures += benchmark(servers)
        gc.collect()
        keep(figures)
    show(figures)


def keep(figures: list[Figure]) -> None:
    """Writes the figures over those of the same names."""
    RESULTS.parent.mkdir(exist_ok=True)
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    names = {figure.name for figure in figures}
    rows = [row for row in before if row["name"] not in names] + [figure.to_json() for figure in figures]
    rows.sort(key=lambda row: row["name"])
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(page(rows))


def page(rows: list[dict[str, Any]]) -> str:
    """The figures as a page for people."""
    lines = [
        "# Figures of the last `make bench`",
        "",
        "| figure | ours | peer | ratio | goal | |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        shown = [
            "" if row[name] is None else f"{row[name]:,.4g}" if row[name] < 1000 else f"{row[name]:,.0f}"
            for name in ("ours", "peer", "ratio", "goal")
        ]
        verdict = {None: "", True: "reached", False: "missed"}[row["reached"]]
        said = "; ".join(filter(None, (verdict, row["note"])))
        lines.append(f"| {row['name']} | {shown[0]} {row['unit']} | {' | '.join(shown[1:])} | {said} |")
    return "\n".join(lines) + "\n"


def show(figures: list[Figure]) -> None:
    """Prints the figures as a table."""
    table = Table(Column("figure", no_wrap=True), "ours", "peer", "ratio", "unit", "goal", "")
    for figure in figures:
        verdict = {None: "", True: "reached", False: "MISSED"}[figure.reached]
        peer = "" if figure.peer is None else f"{figure.peer:,.2f}"
        ratio = "" if figure.ratio is None else f"{figure.ratio:,.1f}x"
        goal = "" if figure.goal is None else f"{'<=' if figure.smaller else '>='} {figure.goal:,g}"
        table.add_row(figure.name, f"{figure.ours:,.2f}", peer, ratio, figure.unit, goal, verdict)
    Console().print(table)


if __name__ == "__main__":
    main()
