"""Connections to Redis: URLs, servers, commands and errors.

The stored format is in redis/keys.py and redis/stored_values.py.
"""
