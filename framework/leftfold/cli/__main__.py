"""`python -m leftfold.cli`, for child processes that must run the same Python, and as the file for spark-submit."""

from __future__ import annotations

import sys
from pathlib import Path

# When this file is run as a script, Python searches its directory first and would take our `events` for the user's.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]

from leftfold.cli.main import main  # noqa: E402

main()
