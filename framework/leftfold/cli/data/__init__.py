"""Commands on data: send, events, get, watch."""
