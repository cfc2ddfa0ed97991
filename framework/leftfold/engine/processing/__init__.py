"""Commands and process managers: decide, react, and the state and time that they need.

Fetching records and committing transactions is in kafka/worker.
"""
