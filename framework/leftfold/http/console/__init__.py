"""The console in the browser: pages about Apps, their log and views, as NiceGUI pages of a FastAPI application.

It stands above `leftfold.runtime` and shows what the commands print; no logic of operations lives here.
"""

from __future__ import annotations

from leftfold.http.console.application import mount_console
from leftfold.http.console.console_state import Console, Visitor

__all__ = ["Console", "Visitor", "mount_console"]
