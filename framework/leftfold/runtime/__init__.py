"""Assembles Apps with their servers, without a shell: settings, projects, supervision, processes.

The command line is in cli.
"""
