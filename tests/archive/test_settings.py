"""Which archive is meant: what is said, else the environment, else the project's; nothing is a choice, too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leftfold.errors import ConfigurationError
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.settings import KafkaSettings
from leftfold.parquet.filesystem import ArchiveFileSystem
from leftfold.runtime.connect import open_archive, open_bulk
from leftfold.runtime.project import Usage, archive_needed, archive_of


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEFTFOLD_ARCHIVE_DIR", raising=False)
    monkeypatch.chdir(tmp_path)


def test_without_any_there_is_none(tmp_path: Path) -> None:
    assert archive_of(None) == ""
    assert open_archive("") is None
    assert open_bulk(KafkaSettings(bootstrap_servers="nowhere:1")).func is KafkaBulkLog  # type: ignore[attr-defined]
    with pytest.raises(Usage, match="say --to DIR, set LEFTFOLD_ARCHIVE_DIR"):
        archive_needed(None, "--to")


def test_the_option_wins_over_the_environment_and_that_over_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.leftfold]\narchive = "kept"\n')
    (tmp_path / "below").mkdir()
    monkeypatch.chdir("below")
    assert archive_of(None) == str(tmp_path / "kept")
    monkeypatch.setenv("LEFTFOLD_ARCHIVE_DIR", "s3://bucket/log")
    assert archive_of(None) == "s3://bucket/log"
    assert archive_of("here") == "here"
    assert archive_of("") == ""
    assert "LEFTFOLD_ARCHIVE_DIR" in os.environ


def test_a_uri_in_the_project_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.leftfold]\narchive = "s3://bucket/log"\n')
    assert archive_of(None) == "s3://bucket/log"


def test_an_unknown_file_system_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigurationError, match="no file system that pyarrow knows"):
        ArchiveFileSystem("carrier-pigeon://loft")
