"""Assembles Apps with Kafka and Redis: settings, projects, supervision and worker processes.

The command line is in `cli`, which calls this package.
"""
