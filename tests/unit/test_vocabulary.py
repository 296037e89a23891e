"""One term for one thing. The terms in use are in docs/glossary.md."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("app", "blocklist")

PHRASES: Final = {
    "all the same": "anyway",
    "anew": "again",
    "are told": "are notified, receive",
    "begins anew": "restarts",
    "come second": "conflict with another commit",
    "comes second": "conflicts with another commit",
    "is told": "is notified, receives",
    "passed over": "ignored, skipped",
    "so long": "timeout, interval, deadline; while",
    "so many": "the maximum number of, up to",
    "so often": "at this interval",
    "who is told": "listeners that are notified",
}
"""Phrases that do not come back into documentation, messages and comments."""


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from (path for path in (ROOT / folder).rglob("*.py") if path != Path(__file__).resolve())


def texts() -> Iterator[Path]:
    """What people read: documentation, and the code with its messages and comments."""
    yield from ROOT.glob("*.md")
    for folder, kinds in {"docs": ("*.md", "*.yml"), "deploy": ("*.conf",), "app": ("*.py", "*.j2")}.items():
        for kind in kinds:
            yield from (ROOT / folder).rglob(kind)
    yield from sources("blocklist")


def _place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_a_class_name_has_one_meaning() -> None:
    places = defaultdict(list)
    for path in sources(*PACKAGES):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(_place(path, node.lineno))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_retired_phrase_is_in_documentation_or_code() -> None:
    found = []
    for path in texts():
        text = path.read_text(encoding="utf-8")
        for match in _PHRASES.finditer(text):
            phrase = " ".join(match[0].lower().split())
            found.append(
                f"{_place(path, text.count(chr(10), 0, match.start()) + 1)}: {phrase!r}: write {PHRASES[phrase]!r}"
            )
    assert not found, "\n".join(found)


_PHRASES: Final = re.compile(
    r"\b(?:" + "|".join(re.escape(phrase).replace(r"\ ", r"\s+(?:\#\s+)?") for phrase in PHRASES) + r")\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("package", PACKAGES)
def test_import_linter_names_each_package(package: str) -> None:
    """The layers of a package name all that is right below it; `exhaustive` makes import-linter check that, too."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = [own for own in config["tool"]["importlinter"]["contracts"] if own.get("containers") == [package]]
    assert contract["exhaustive"] is True
    named = {name.strip() for layer in contract["layers"] for name in re.split(r"[|:]", layer)}
    children = {
        path.stem for path in (ROOT / package).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert named == children - {"__init__"}
