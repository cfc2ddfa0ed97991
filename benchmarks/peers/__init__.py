"""What peers run, each in an environment of its own; nothing here is imported by us."""
