"""Where the archive is: the setting of the environment, read without pyarrow."""

from __future__ import annotations

from pydantic_settings import BaseSettings, SettingsConfigDict

__all__ = ["ArchiveSettings"]


class ArchiveSettings(BaseSettings):
    """Where the log's past is kept; environment variables begin with LEFTFOLD_ARCHIVE_.

    Args:
        dir: a directory, or a URI that pyarrow knows, such as s3://bucket/folder; '' = there is no archive.
    """

    model_config = SettingsConfigDict(
        env_prefix="LEFTFOLD_ARCHIVE_", env_ignore_empty=True, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    dir: str = ""
