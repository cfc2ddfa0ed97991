"""What operators look at and do, without a shell: the survey, dead letters, timers.

The command line, the console and `/metrics` share it. No command and no page lives here.
"""
