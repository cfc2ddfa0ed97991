"""Entry point of the command `leftfold`: Ctrl-C ends it without a traceback while modules are still imported.

It is outside the package, because importing `leftfold` takes most of the start-up time.
"""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command line of this process."""
    # A parent such as nohup starts this process with SIGINT ignored: it must stay ignored.
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.getpid() == 1:
        # The kernel ignores SIGTERM for the first process of a container that has no handler of its own.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    from leftfold.cli.main import run

    signal.signal(signal.SIGINT, handler)
    code = run(sys.argv[1:])
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # The process only has to exit; a traceback for Ctrl-C during the exit would be useless.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


if __name__ == "__main__":
    main()
