"""Typed reads of views: what production and the memory world hand to queries."""

from leftfold.reading.change import Change
from leftfold.reading.entry import Entry
from leftfold.reading.pages import Page
from leftfold.reading.reader import Reader
from leftfold.reading.views import Views

__all__ = ["Change", "Entry", "Page", "Reader", "Views"]
