"""Clients that OpenAPI Generator makes from the description of a gateway."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from leftfold.local import LocalSettings, java_home
from leftfold.local.files import held
from leftfold.local.jars import Jar, fetch, verify

__all__ = ["generate"]

GENERATOR = Jar(
    "clients",
    "org.openapitools:openapi-generator-cli:7.20.0",
    "871e0155287a87b579ff31096b2d45b1f95a115edfe631411ec6cff4848d0f03",
    31_161_267,
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
    command = [str(java_home() / "bin" / "java"), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", str(_jar())]
    done = subprocess.run(
        [*command, "batch", "--fail-fast", *(str(place / f"{name}.json") for name in properties)],
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return place / "python", place / "typescript-fetch"


def _jar() -> Path:
    """The generator, fetched once as the jars of the servers are."""
    settings = LocalSettings()
    if settings.jars is not None and (settings.jars / GENERATOR.file).is_file():
        return verify(settings.jars, (GENERATOR,))[0]
    place = settings.cache / "jars" / f"clients-{GENERATOR.sha256[:12]}"
    place.mkdir(parents=True, exist_ok=True)
    with held(place.with_suffix(".lock"), seconds=_PATIENCE, busy=f"another process fetches {GENERATOR.file}"):
        if not (place / "jars" / GENERATOR.file).is_file():
            fetch([GENERATOR.coordinates], place, settings, step=lambda arrived: None)
        return verify(place / "jars", (GENERATOR,))[0]
