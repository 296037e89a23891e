"""The commands of a page, as its reader types them: from blocks fenced as `console`.

`$ ` begins a command; what follows up to the next one is what the reader sees. A command goes on in the next line while
a quote is open or after a backslash. `# exits 1` after it says that it is to fail so; `^C` as the last line that the
reader interrupts it once the rest was seen. Comments before a block speak to the test: `<!-- not run: WHY -->` leaves
it out, `<!-- then: WHAT -->` makes something happen first; `<!-- it is TIME -->` says when the page plays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

_FENCE: Final = re.compile(r"^```(\w*)\s*$")
_COMMENT: Final = re.compile(r"^<!-- (not run|then|it is):? ?(.*?) ?-->$")
_EXITS: Final = re.compile(r"\s+# exits (\d+)\b")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
INTERRUPT: Final = "^C"


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """What is typed, where on the page, and what is to be seen then."""

    place: str
    text: str
    shown: str
    interrupted: bool
    code: int


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happens between two commands, by its name."""

    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A page as the test runs it. `not_run` are the reasons why blocks are left out."""

    steps: list[Command | Happening]
    not_run: list[str]


def read(path: Path) -> Page:
    """The page. Times in its commands keep their distance to the time at which it plays."""
    text = path.read_text(encoding="utf-8")
    if plays := re.search(r"<!-- it is (\S+) -->", text):
        later = datetime.now(UTC) - datetime.fromisoformat(plays[1])
        text = _TIME.sub(lambda match: _shifted(match[0], later), text)
    steps: list[Command | Happening] = []
    not_run: list[str] = []
    for comment, block in _blocks(text.splitlines(), path.name):
        match comment:
            case ("not run", reason):
                assert reason, f"{path.name}: a block is not run without a reason"
                not_run.append(reason)
                continue
            case ("then", name):
                steps.append(Happening(name))
        steps += block
    return Page(steps=steps, not_run=not_run)


def _shifted(time: str, by: timedelta) -> str:
    return f"{datetime.fromisoformat(time) + by:%Y-%m-%dT%H:%M:%SZ}"


def _blocks(lines: list[str], name: str) -> Iterator[tuple[tuple[str, str] | None, list[Command]]]:
    """The comment before each console block, if any, and its commands."""
    comment: tuple[str, str] | None = None
    language: str | None = None
    begun, inside = 0, list[str]()
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line)
        if fence and language is None:
            language, begun, inside = fence[1], number, []
        elif fence:
            if language == "console":
                yield comment, list(_commands(inside, name, begun))
            language, comment = None, None
        elif language is not None:
            inside.append(line)
        elif found := _COMMENT.match(line):
            comment = (found[1], found[2])
        elif line.strip():
            comment = None


def _commands(lines: list[str], name: str, begun: int) -> Iterator[Command]:
    assert lines, f"{name}:{begun}: the block is empty"
    assert lines[0].startswith("$ "), f"{name}:{begun}: a console block begins with a command"
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        typed, shown = lines[start][2:], lines[start + 1 : end]
        while _goes_on(typed) and shown:
            typed += "\n" + shown.pop(0)
        interrupted = shown[-1:] == [INTERRUPT]
        code = _EXITS.search(typed)
        yield Command(
            place=f"{name}:{begun + 1 + start}",
            text=typed,
            shown="\n".join(shown[:-1] if interrupted else shown),
            interrupted=interrupted,
            code=int(code[1]) if code else 0,
        )


def _goes_on(typed: str) -> bool:
    return typed.endswith("\\") or typed.count("'") % 2 == 1
