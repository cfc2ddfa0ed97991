"""Clients that OpenAPI Generator makes from the description of a gateway, and TypeScript's compiler."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

from leftfold.local import LocalSettings, java_home
from leftfold.local.files import held
from leftfold.local.jars import Jar, fetch, verify

__all__ = ["compiler", "generate"]

GENERATOR = Jar(
    "clients",
    "org.openapitools:openapi-generator-cli:7.20.0",
    "871e0155287a87b579ff31096b2d45b1f95a115edfe631411ec6cff4848d0f03",
    31_161_267,
)
TYPESCRIPT = Jar(
    "clients",
    "org.webjars.npm:typescript:5.9.3",
    "be4e42933dde698781ef8ffd13b82537634117c75372b66fa08f7ed9d6759c6a",
    4_494_990,
)
_PATIENCE = 600.0


def generate(description: dict[str, Any], place: Path, package: str) -> tuple[Path, Path]:
    """Makes a client in Python and one in TypeScript; the directories of their sources."""
    (place / "openapi.json").write_text(json.dumps(description), "utf-8")
    properties = {
        "python": {"packageName": package},
        # With these Node runs the sources as they are.
        "typescript-fetch": {"importFileExtension": ".ts", "supportsES6": "true"},
    }
    for name, more in properties.items():
        config = {
            "generatorName": name, "inputSpec": str(place / "openapi.json"), "outputDir": str(place / name),
            "additionalProperties": more,
        }  # fmt: skip
        (place / f"{name}.json").write_text(json.dumps(config), "utf-8")
    # One start of Java for both.
    command = [
        str(java_home() / "bin" / "java"),
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-jar",
        str(_fetched(GENERATOR)),
    ]
    done = subprocess.run(
        [*command, "batch", "--fail-fast", *(str(place / f"{name}.json") for name in properties)],
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return place / "python", place / "typescript-fetch"


def compiler(place: Path) -> Path:
    """The script of TypeScript's compiler, unpacked at a place."""
    with zipfile.ZipFile(_fetched(TYPESCRIPT)) as jar:
        jar.extractall(place, [name for name in jar.namelist() if "/lib/" in name])
    return next(place.glob("**/lib/tsc.js"))


def _fetched(jar: Jar) -> Path:
    """A jar, fetched once as those of the servers are."""
    settings = LocalSettings()
    if settings.jars is not None and (settings.jars / jar.file).is_file():
        return verify(settings.jars, (jar,))[0]
    place = settings.cache / "jars" / f"clients-{jar.sha256[:12]}"
    place.mkdir(parents=True, exist_ok=True)
    with held(place.with_suffix(".lock"), seconds=_PATIENCE, busy=f"another process fetches {jar.file}"):
        if not (place / "jars" / jar.file).is_file():
            fetch([jar.coordinates], place, settings, step=lambda arrived: None)
        return verify(place / "jars", (jar,))[0]
