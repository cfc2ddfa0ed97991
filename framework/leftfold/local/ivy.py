"""The Ivy that ships inside pyspark, run to bring jars from wherever the user's machine gets them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from xml.sax.saxutils import quoteattr

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.local.java import java_home
from leftfold.local.settings import LocalSettings
from leftfold.local.wheel import wheel_path

__all__ = ["fetch", "resolve"]

_SEPARATOR = "--"

# Without poms a locked list needs one request per jar instead of three; Ivy itself knows where `ibiblio` is.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="default"/>
  <timeout-constraints>
    <timeout-constraint name="patient" connectionTimeout="10000" readTimeout="60000"/>
  </timeout-constraints>
  <resolvers>
    <ibiblio name="default" m2compatible="true" usepoms="{poms}" timeoutConstraint="patient"/>
  </resolvers>
</ivysettings>
"""
_MODULE = """<ivy-module version="2.0">
  <info organisation="leftfold" module="jars"/>
  <configurations><conf name="jars"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""
_REASON = re.compile(r"Server access error.*|\(sha1 or md5\).*|invalid sha1.*|.*[:;].*: not found|.*Exception.*")


def fetch(coordinates: Iterable[str], directory: Path, settings: LocalSettings, step: Callable[[int], None]) -> None:
    """Bring exactly these jars into `directory`/jars; an earlier, broken-off fetch into it is continued.

    Args:
        step: told how many jars have arrived so far.

    Raises:
        InfrastructureError: a jar is not to be had; the message says why and what to try.
        ConfigurationError: no Java, no pyspark, or the Ivy settings file is missing.
    """
    _run(coordinates, directory, settings, transitive=False, pattern="[artifact]-[revision].[ext]", step=step)


def resolve(roots: Iterable[str], directory: Path, settings: LocalSettings, *, transitive: bool) -> dict[str, Path]:
    """Bring these jars and, if asked, everything they depend on; return their coordinates and files."""
    pattern = _SEPARATOR.join(("[organisation]", "[artifact]", "[revision].[ext]"))
    _run(roots, directory, settings, transitive=transitive, pattern=pattern, step=lambda _: None)
    files = sorted((directory / "jars").glob("*.jar"))
    return {":".join(file.stem.split(_SEPARATOR)): file for file in files}


def _run(
    coordinates: Iterable[str],
    directory: Path,
    settings: LocalSettings,
    *,
    transitive: bool,
    pattern: str,
    step: Callable[[int], None],
) -> None:
    module, rules = directory / "ivy.xml", directory / "ivysettings.xml"
    module.write_text(_module(coordinates, transitive=transitive), "utf-8")
    rules.write_text(_SETTINGS.format(poms="true" if transitive else "false"), "utf-8")
    command = [
        *(str(java_home(settings) / "bin" / "java"), "-jar", str(_ivy())),
        *("-ivy", str(module), "-settings", str(_mirror(settings) or rules), "-cache", str(directory / "cache")),
        *("-confs", "jars", "-retrieve", f"{directory}/jars/{pattern}"),
    ]
    told, arrived = [], 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
        assert ivy.stdout is not None
        for line in ivy.stdout:
            told.append(line.strip())
            if "[SUCCESSFUL ]" in line and ".jar(" in line:
                arrived += 1
                step(arrived)
    if ivy.returncode != 0:
        raise InfrastructureError(_failure(told))


def _module(coordinates: Iterable[str], *, transitive: bool) -> str:
    line = "    <dependency org={} name={} rev={} conf='jars->default' transitive='{}'/>"
    flag = "true" if transitive else "false"
    lines = (line.format(*map(quoteattr, name.split(":")), flag) for name in coordinates)
    return _MODULE.format(dependencies="\n".join(lines))


def _failure(told: list[str]) -> str:
    reasons = list(dict.fromkeys(line for line in told if _REASON.fullmatch(line)))
    untrusted = " (this Java does not know the certificate of your proxy: try the Java of your system)"
    return (
        f"Ivy could not bring the jars: {'; '.join(reasons[-2:]) or ' '.join(told[-3:])}"
        f"{untrusted if any('PKIX' in line for line in told) else ''}. Check the network, or name a mirror with "
        "LEFTFOLD_IVY_SETTINGS=<Ivy settings file>, or fetch them where there is a network with "
        "`python -m leftfold.local.jars DIRECTORY` and set LEFTFOLD_JARS=DIRECTORY here"
    )


def _ivy() -> Path:
    jars = wheel_path("pyspark", "jars")
    found = sorted(jars.glob("ivy-*.jar")) if jars is not None else []
    if not found:
        raise ConfigurationError(
            "pyspark, whose Ivy fetches the jars, is not installed; install it: pip install 'leftfold[spark]'"
        )
    return found[-1]


def _mirror(settings: LocalSettings) -> Path | None:
    if settings.ivy_settings is not None and not settings.ivy_settings.is_file():
        raise ConfigurationError(
            f"LEFTFOLD_IVY_SETTINGS names {settings.ivy_settings}, which is no file; correct or unset it"
        )
    return settings.ivy_settings
