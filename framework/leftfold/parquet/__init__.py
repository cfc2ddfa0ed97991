"""The archive of the event log: Parquet files on any file system that pyarrow supports.

Its settings are here, since they are read where pyarrow is not installed.
"""

from __future__ import annotations

from pydantic_settings import BaseSettings, SettingsConfigDict

__all__ = ["ArchiveSettings"]


class ArchiveSettings(BaseSettings):
    """The location of the archive of the log; environment variables begin with LEFTFOLD_ARCHIVE_.

    Args:
        dir: a directory, or a URI that pyarrow supports, such as s3://bucket/folder; '' = no archive.
    """

    model_config = SettingsConfigDict(
        env_prefix="LEFTFOLD_ARCHIVE_", env_ignore_empty=True, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    dir: str = ""
