"""The page about settings names every environment variable."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from leftfold.http.settings import HttpSettings
from leftfold.kafka.settings import KafkaSettings
from leftfold.local.settings import LocalSettings
from leftfold.parquet import ArchiveSettings
from leftfold.redis import RedisSettings
from leftfold.spark.core.session import SparkSettings

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text("utf-8")
UNNAMED = {"LEFTFOLD_KAFKA_ADVICE", "LEFTFOLD_REDIS_ADVICE"}
"""They are not for operators."""
SETTINGS = [KafkaSettings, RedisSettings, SparkSettings, ArchiveSettings, HttpSettings, LocalSettings]


@pytest.mark.parametrize("settings", SETTINGS)
def test_each_variable_is_on_the_page(settings: type[BaseSettings]) -> None:
    prefix = settings.model_config["env_prefix"]
    fields = settings.model_fields.items()
    read = {str(field.validation_alias or f"{prefix}{name.upper()}") for name, field in fields}
    named = set(re.findall(r"`(LEFTFOLD_[A-Z_]+)`", PAGE))
    assert {name for name in read - UNNAMED if name.startswith("LEFTFOLD_")} <= named
    assert {name for name in named if name.startswith(prefix)} <= read
