"""Who does something by hand, and why: it is kept with what was done."""

from __future__ import annotations

import getpass

from leftfold.cli.failures import Usage

__all__ = ["signed"]

_LONGEST = 2000


def signed(by: str, reason: str) -> str:
    """Who it is: the name that was said, or the login.

    Raises:
        Usage: no reason is given, or the user has no name.
    """
    if not 0 < len(reason.strip()) <= _LONGEST:
        raise Usage(f"why? say --reason TEXT, in {_LONGEST} characters at most; it is kept with what you do")
    if by:
        return by
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in containers
        raise Usage("who does this? your user has no name here; say --by WHO") from None
