"""Connections to Redis: URLs, servers, commands and errors.

The stored format is in redis/format.py.
"""
