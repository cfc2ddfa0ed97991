"""The command line; heavy imports happen in the command that needs them."""
