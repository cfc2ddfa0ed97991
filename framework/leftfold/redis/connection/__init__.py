"""Connections to Redis: URLs, servers, commands and errors.

What is stored is described by redis/format.py.
"""
