"""The services of the chain: each owns a context and decides its commands, or is a process across several of them."""
