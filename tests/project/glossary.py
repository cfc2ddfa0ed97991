"""The glossary lint of `make check`: words that hide the subject, and public names made of words that are not listed.

Reads the docstrings, comments, strings and names of functions and classes of the framework, tests, services, events,
projections and benchmarks, and the README, the pages, CHANGELOG.md and CONTRIBUTING.md. A public name is what a module
of the framework exports; each of its words must be in `docs/words.txt`, which is reviewed when it grows.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PHRASES = (
    "nobody", "somebody", "whoever", "told", "tells? of", "says of itself", "gone", "anew", "mend(s|ed)?",
    "lets? go of", "goes on", "by hand", "in truth", "is away",
)  # fmt: skip
HIDING = re.compile(rf"\b({'|'.join(_PHRASES)})\b", re.IGNORECASE)
"""Words and phrases behind which the reader must guess who does what."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def words(name: str) -> list[str]:
    """The words of an identifier, in lower case."""
    return [word.lower() for word in _WORD.findall(name)]


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of prose: a page whole, of a module its comments, docstrings and messages."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        prose = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL)
        yield from enumerate(re.sub(r"\]\([^)]*\)|`[^`\n]*`", "", prose).splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield from enumerate(token.string.splitlines(), token.start[0])


def names(path: Path) -> Iterator[tuple[int, str]]:
    """The names of a module's functions and classes, each as its words with spaces between them; none of a page."""
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node.lineno, " ".join(words(node.name))


def hiding(paths: list[Path]) -> list[str]:
    """Where a hiding word stands in prose or in a name, as `path:line: word`."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {found[0]}"
        for path in paths
        for line, sentence in (*sentences(path), *names(path))
        for found in HIDING.finditer(sentence)
    ]


def unlisted(paths: list[Path], listed: frozenset[str]) -> list[str]:
    """Public names with a word that is not listed, as `path: Name (word)`."""
    return [
        f"{path.relative_to(ROOT)}: {name} ({word})"
        for path in paths
        for name in exported(path)
        for word in words(name)
        if word not in listed
    ]


def exported(path: Path) -> list[str]:
    """The names in `__all__` of a module."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


def modules() -> list[Path]:
    """The modules of the framework."""
    return sorted((ROOT / "framework" / "leftfold").rglob("*.py"))


def pages() -> list[Path]:
    """The README and the pages; decisions are history and stay as they were written."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def others() -> list[Path]:
    """The other modules and files for contributors; without this lint and its test, which name hiding words."""
    folders = ("tests", "services", "events", "projections", "benchmarks")
    own = {ROOT / "tests" / "project" / "glossary.py", *(ROOT / "tests" / "project").glob("test_glossary*.py")}
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")) if path not in own]
    return [*found, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]


def main() -> int:
    """Prints what is wrong; 1 when anything is."""
    listed = frozenset((ROOT / "docs" / "words.txt").read_text("utf-8").split())
    wrong = hiding([*modules(), *pages(), *others()]) + unlisted(modules(), listed)
    sys.stdout.write("".join(f"{line}\n" for line in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
