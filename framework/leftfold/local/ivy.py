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
from leftfold.local.trust import trust_flags
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
_UNTRUSTED = "unable to find valid certification path"
_ARRIVED = re.compile(r"\[SUCCESSFUL ].*!.*\.jar")
_REASON = re.compile(r"Server access error.*|\(sha1 or md5\).*|invalid sha1.*|.*[:;].*: not found|.*Exception.*")


def fetch(coordinates: Iterable[str], directory: Path, settings: LocalSettings, step: Callable[[int], None]) -> None:
    """Bring exactly these jars into `directory`/jars; an earlier, broken-off fetch into it is continued.

    Args:
        step: told how many jars have arrived so far.

    Raises:
        InfrastructureError: a jar is not to be had; the message says why and what to try.
        ConfigurationError: no Java, no pyspark, or the Ivy settings file is missing.
    """
    pattern = "[artifact]-[revision].[ext]"
    _run(_command(coordinates, directory, settings, transitive=False, pattern=pattern), directory, step)


def resolve(roots: Iterable[str], directory: Path, settings: LocalSettings, *, transitive: bool) -> dict[str, Path]:
    """Bring these jars and, if asked, everything they depend on; return their coordinates and files."""
    pattern = _SEPARATOR.join(("[organisation]", "[artifact]", "[revision].[ext]"))
    _run(_command(roots, directory, settings, transitive=transitive, pattern=pattern), directory, lambda _: None)
    files = sorted((directory / "jars").glob("*.jar"))
    return {":".join(file.stem.split(_SEPARATOR)): file for file in files}


def _command(
    coordinates: Iterable[str], directory: Path, settings: LocalSettings, *, transitive: bool, pattern: str
) -> list[str]:
    module, rules = directory / "ivy.xml", directory / "ivysettings.xml"
    module.write_text(_module(coordinates, transitive=transitive), "utf-8")
    rules.write_text(_SETTINGS.format(poms="true" if transitive else "false"), "utf-8")
    return [
        *(str(java_home(settings) / "bin" / "java"), "-jar", str(_ivy())),
        *("-ivy", str(module), "-settings", str(_mirror(settings) or rules), "-cache", str(directory / "cache")),
        *("-confs", "jars", "-retrieve", f"{directory}/jars/{pattern}"),
    ]


def _run(command: list[str], directory: Path, step: Callable[[int], None]) -> None:
    done, told = _attempt(command, step)
    if not done and any(_UNTRUSTED in line for line in told):
        java, *rest = command
        done, told = _attempt([java, *trust_flags(directory / "trust.jks"), *rest], step)
    if not done:
        raise InfrastructureError(_failure(told))


def _attempt(command: list[str], step: Callable[[int], None]) -> tuple[bool, list[str]]:
    told, arrived = [], 0
    step(arrived)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
        for line in ivy.stdout or ():
            told.append(line.strip())
            if _ARRIVED.search(line):
                arrived += 1
                step(arrived)
    return ivy.returncode == 0, told


def _module(coordinates: Iterable[str], *, transitive: bool) -> str:
    line = "    <dependency org={} name={} rev={} conf='jars->default' transitive='{}'/>"
    flag = "true" if transitive else "false"
    lines = (line.format(*map(quoteattr, name.split(":")), flag) for name in coordinates)
    return _MODULE.format(dependencies="\n".join(lines))


def _failure(told: list[str]) -> str:
    reasons = list(dict.fromkeys(line for line in told if _REASON.fullmatch(line)))
    return (
        f"Ivy could not bring the jars: {'; '.join(reasons[-2:]) or ' '.join(told[-3:])}. Check the network, or name "
        "a mirror with LEFTFOLD_IVY_SETTINGS=<Ivy settings file>, or fetch the jars where there is a network with "
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
