"""`python -m leftfold.cli`, for children that must run the same Python; also the file to hand to spark-submit."""

from __future__ import annotations

import sys
from pathlib import Path

# Run as a file, Python looks for modules here first, and would take our `events` for the user's.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]

from leftfold.cli.main import main  # noqa: E402

main()
