"""Commands on processes and reactions: timers, reactions."""
