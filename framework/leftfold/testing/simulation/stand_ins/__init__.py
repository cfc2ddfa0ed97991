"""Stand-ins for modules of the standard library in simulated code: threads, sockets and event loops."""
