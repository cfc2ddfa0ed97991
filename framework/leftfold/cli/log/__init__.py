"""Commands on the log and the states of streams: trace, SQL, archive, dead letters, skipping, state."""
