"""Typed reads of views: what production and the memory world hand to queries."""

from leftfold.client.async_reader import Page
from leftfold.client.reader import Reader, Views
from leftfold.client.results import Change, Entry

__all__ = ["Change", "Entry", "Page", "Reader", "Views"]
