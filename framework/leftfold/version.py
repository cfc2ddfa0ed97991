"""The version of the package, read by the build, and how to install more of it."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote

__all__ = ["__version__", "install_command"]

__version__ = "0.1.0"


def install_command(extras: str) -> str:
    """The command that installs extras, such as `kafka,redis`, from where this package was installed."""
    try:
        origin = json.loads(distribution("leftfold").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    url = str(origin.get("url", ""))
    if origin.get("dir_info", {}).get("editable"):
        return f"pip install -e '{unquote(url.removeprefix('file://'))}[{extras}]'"
    return f"pip install 'leftfold[{extras}]{f' @ {url}' if url else ''}'"
