"""`python -m leftfold.cli`, for children that must run the same Python."""

from __future__ import annotations

from leftfold.cli.main import main

main()
