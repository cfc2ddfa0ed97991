"""The command line: composition from the shell. Heavy imports happen in the command that needs them."""
