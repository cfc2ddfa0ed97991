"""The file for what Spark's JVM writes to standard error."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from leftfold.errors import InfrastructureError
from leftfold.spark.core.jvm import private_folder, quiet_launch
from leftfold.spark.core.session import SparkSettings


def test_the_log_follows_no_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine", "utf-8")
    (tmp_path / "spark.log").symlink_to(victim)
    with pytest.raises(InfrastructureError, match=r"spark\.log"), quiet_launch(private_folder(tmp_path)):
        os.write(2, b"warning")
    assert victim.read_text("utf-8") == "mine"


def test_a_long_log_is_begun_anew_and_one_before_it_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    for text in ("a", "b", "c"):
        with quiet_launch(private_folder(tmp_path)):
            os.write(2, text.encode() * 1_000_001)
    assert log.read_bytes()[:1] == b"c"
    assert log.stat().st_size == 1_000_001
    assert (tmp_path / "spark.log.before").read_bytes()[:1] == b"b"
    assert len(list(tmp_path.iterdir())) == 2


def test_without_a_home_the_log_is_in_a_new_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    file = tmp_path / "no-directory"
    file.touch()
    with quiet_launch(private_folder(file / "cache")):
        pass
    assert len(list(tmp_path.glob("leftfold-*/spark.log"))) == 1


def test_a_cache_that_others_can_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (cache := tmp_path / "cache").mkdir()
    assert private_folder(cache) == cache
    cache.chmod(0o777)
    found = private_folder(cache)
    assert found.name.startswith("leftfold-")
    assert stat.S_IMODE(found.stat().st_mode) == 0o700


def test_the_warehouse_is_of_this_user_alone(spark: SparkSession) -> None:
    warehouse = Path(str(spark.conf.get("spark.sql.warehouse.dir")).removeprefix("file:"))
    assert warehouse == SparkSettings().cache / "warehouse"
