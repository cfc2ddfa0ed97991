"""Typed reads of views, the same for production and for the world in memory."""

from leftfold.client.async_reader import Page
from leftfold.client.reader import Reader, Views
from leftfold.client.results import Change, Entry

__all__ = ["Change", "Entry", "Page", "Reader", "Views"]
