"""What the command `leftfold` begins with: Ctrl-C ends it quietly while everything else is still being imported.

It is no part of the package, since importing `leftfold` is most of what there is to wait for.
"""

from __future__ import annotations

import signal
import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command line of this process."""
    # Who starts us with Ctrl-C ignored, as nohup does, means it.
    meant = signal.getsignal(signal.SIGINT)
    if meant is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from leftfold.cli.main import run

    signal.signal(signal.SIGINT, meant)
    code = run(sys.argv[1:])
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Nothing is left but to end; what Python would say to Ctrl-C now is of no use.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


if __name__ == "__main__":
    main()
