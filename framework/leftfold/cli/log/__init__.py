"""Commands on the log: trace, SQL, archive, dead letters, skipping."""
