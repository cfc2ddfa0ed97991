"""Runs a notebook's cells and keeps what they print and draw: `python -m tests.archive.spark.notebook FILE`."""

from __future__ import annotations

import base64
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

__all__ = ["main"]

_DPI = 60


def _ran(file: Path) -> list[list[dict[str, Any]]]:
    """The outputs of each cell, as notebooks have them."""
    import matplotlib as mpl

    mpl.use("Agg")
    space: dict[str, Any] = {"__name__": "notebook"}
    outputs: list[list[dict[str, Any]]] = []
    for number, cell in enumerate(json.loads(file.read_text("utf-8"))["cells"]):
        if cell["cell_type"] != "code":
            outputs.append([])
            continue
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"{file.name}:{number}", "exec"), space)  # noqa: S102  # our own
        outputs.append([*_text(printed.getvalue()), *_figures()])
    return outputs


def _text(text: str) -> list[dict[str, Any]]:
    return [{"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}] if text else []


def _figures() -> list[dict[str, Any]]:
    import matplotlib.pyplot as plt

    found = []
    for number in plt.get_fignums():
        drawn = io.BytesIO()
        plt.figure(number).savefig(drawn, format="png", dpi=_DPI, metadata={"Software": None})
        png = base64.b64encode(drawn.getvalue()).decode()
        found.append({"output_type": "display_data", "metadata": {}, "data": {"image/png": png}})
    plt.close("all")
    return found


def main(file: Path) -> None:
    """Runs the notebook on the servers that the environment names, and writes the outputs into it."""
    outputs = _ran(file)
    notebook = json.loads(file.read_text("utf-8"))
    for number, (cell, found) in enumerate(zip(notebook["cells"], outputs, strict=True), 1):
        if cell["cell_type"] == "code":
            cell |= {"outputs": found, "execution_count": number}
    file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
