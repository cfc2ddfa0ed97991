"""The services of the chain: each owns a context, decides its commands and writes its events."""
