"""The page about settings names every environment variable."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from leftfold.http.settings import HttpSettings
from leftfold.kafka.settings import KafkaSettings
from leftfold.parquet import ArchiveSettings
from leftfold.redis import RedisSettings
from leftfold.spark.core.session import SparkSettings

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text("utf-8")
UNNAMED = {"advice", "cache_home", "java_home", "jars"}
"""They are not for operators, or are named by a variable of the system."""


@pytest.mark.parametrize("settings", [KafkaSettings, RedisSettings, SparkSettings, ArchiveSettings, HttpSettings])
def test_each_variable_is_on_the_page(settings: type[BaseSettings]) -> None:
    prefix = settings.model_config["env_prefix"]
    named = {name.removeprefix(prefix).lower() for name in re.findall(rf"`({prefix}[A-Z_]+)`", PAGE)}
    assert named == settings.model_fields.keys() - UNNAMED
