"""What an App's code has changed since its lock was written, and what to do about each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from leftfold.lockfile.lock import FoldLock, Lock
from leftfold.lockfile.schema import breaks

__all__ = ["Finding", "compare"]

_TYPE = re.compile(r"(?P<name>.+)\.v(?P<version>[0-9]{1,9})")
_SAME = "or, if it means the same, accept it: leftfold check --write"
_RECORD = "record it: leftfold check --write"
Schemas: TypeAlias = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Finding:
    """One difference; `wrong` when stored data would be read or folded differently, else it is merely unrecorded."""

    about: str
    message: str
    wrong: bool = True

    @property
    def difference(self) -> str:
        """What differs, without what to do about it."""
        return f"{self.about}: {self.message.partition('; ')[0]}"

    def __str__(self) -> str:
        return f"{self.about}: {self.message}"


def compare(released: Lock, now: Lock) -> list[Finding]:
    """The differences between what was released and what the code says now, the wrong ones first."""
    found = [
        *_folds("decider", "evolve", released.deciders, now.deciders),
        *_folds("process", "react or evolve", released.processes, now.processes),
        *_folds("view", "its fold", released.views, now.views),
        *_messages("event", released.events, now.events),
        *_messages("command", released.commands, now.commands),
    ]
    return sorted(found, key=lambda finding: (not finding.wrong, finding.about))


def _folds(kind: str, fold: str, old: Mapping[str, FoldLock], new: Mapping[str, FoldLock]) -> Iterator[Finding]:
    for name in new.keys() - old.keys():
        yield Finding(f"{kind} {name}", f"is new; {_RECORD}", wrong=False)
    for name in old.keys() - new.keys():
        yield Finding(f"{kind} {name}", f"is gone; {_RECORD}", wrong=False)
    for name in old.keys() & new.keys():
        yield from _fold(f"{kind} {name}", fold, old[name], new[name])


def _fold(about: str, fold: str, old: FoldLock, new: FoldLock) -> Iterator[Finding]:
    if new.version < old.version:
        yield Finding(about, f"version={new.version} is below {old.version}, which was released; versions only rise")
    elif new.version > old.version:
        yield Finding(about, f"version={new.version} is not in leftfold.lock yet; {_RECORD}", wrong=False)
    elif new.schema != old.schema:
        yield Finding(about, f"has another row, key or index, and so gets a new generation; {_RECORD}", wrong=False)
    elif new.fold != old.fold:
        yield Finding(about, f"{fold} changed since leftfold.lock; raise version= to {old.version + 1}, {_SAME}")


def _messages(kind: str, released: Schemas, now: Schemas) -> Iterator[Finding]:
    latest = {match["name"]: int(match["version"]) for match in map(_TYPE.fullmatch, now) if match}
    for type_ in released.keys() - now.keys():
        match = _TYPE.fullmatch(type_)
        if match is None or latest.get(match["name"], 0) <= int(match["version"]):
            newest = latest.get(match["name"]) if match else None
            yield _lost(kind, type_, newest)
    for type_ in now.keys() - released.keys():
        yield Finding(f"{kind} {type_}", f"is not in leftfold.lock yet; {_RECORD}", wrong=False)
    for type_ in released.keys() & now.keys():
        yield from _message(kind, type_, released[type_], now[type_])


def _lost(kind: str, type_: str, newest: int | None) -> Finding:
    about = f"{kind} {type_}"
    if newest is not None:
        return Finding(about, f"was released and the class is at version={newest}; versions only rise")
    if kind == "command":
        return Finding(about, f"is gone; those still under way become dead letters. {_RECORD}", wrong=False)
    why = "was released and no class reads it any more, but the log may hold it for ever"
    return Finding(about, f"{why}; bring the class back, or, if it never reached a log, delete it from leftfold.lock")


def _message(kind: str, type_: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Finding]:
    if old == new:
        return
    broken = breaks(old, new)
    match = _TYPE.fullmatch(type_)
    version = int(match["version"]) if match else 1
    name = type_.split(".")[1]
    for what in broken:
        yield Finding(
            f"{kind} {type_}",
            f"{what}; give {name} version={version + 1} and upcasts={{..., {version}: ...}}",
        )
    if not broken:
        yield Finding(
            f"{kind} {type_}", f"its schema changed in a way that every reader can bear; {_RECORD}", wrong=False
        )
