"""The commands of a page, from its blocks fenced as `console`.

`$ ` begins a command; the lines up to the next one are its output. A command continues in the next line while a quote
is open or after a backslash. `# exits 1` names the expected exit code; `^C` as the last line interrupts the command
after the rest was printed. Comments before a block are for the test: `<!-- not run: WHY -->` skips it,
`<!-- then: WHAT -->` triggers an event first; `<!-- it is TIME -->` is the time to which the page refers.
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
    """A command, its place on the page, and its expected output and exit code."""

    place: str
    text: str
    expected: str
    interrupt: bool
    code: int


@dataclass(frozen=True, slots=True)
class Event:
    """The name of something that happens between two commands."""

    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """The steps of a page; `skipped` has the reasons of blocks that are not run."""

    steps: list[Command | Event]
    skipped: list[str]


def parse_page(path: Path) -> Page:
    """Parse a page. Times in its commands are moved, so that the time of the page is now."""
    text = path.read_text(encoding="utf-8")
    if plays := re.search(r"<!-- it is (\S+) -->", text):
        offset = datetime.now(UTC) - datetime.fromisoformat(plays[1])
        text = _TIME.sub(lambda match: _shifted(match[0], offset), text)
    steps: list[Command | Event] = []
    not_run: list[str] = []
    for comment, block in _blocks(text.splitlines(), path.name):
        match comment:
            case ("not run", reason):
                assert reason, f"{path.name}: a block is skipped without a reason"
                not_run.append(reason)
                continue
            case ("then", name):
                steps.append(Event(name))
        steps += block
    return Page(steps=steps, skipped=not_run)


def _shifted(time: str, by: timedelta) -> str:
    return f"{datetime.fromisoformat(time) + by:%Y-%m-%dT%H:%M:%SZ}"


def _blocks(lines: list[str], name: str) -> Iterator[tuple[tuple[str, str] | None, list[Command]]]:
    """Yield the comment before each console block, if any, and the commands of the block."""
    comment: tuple[str, str] | None = None
    language: str | None = None
    first_line, inside = 0, list[str]()
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line)
        if fence and language is None:
            language, first_line, inside = fence[1], number, []
        elif fence:
            if language == "console":
                yield comment, list(_commands(inside, name, first_line))
            language, comment = None, None
        elif language is not None:
            inside.append(line)
        elif found := _COMMENT.match(line):
            comment = (found[1], found[2])
        elif line.strip():
            comment = None


def _commands(lines: list[str], name: str, first_line: int) -> Iterator[Command]:
    assert lines, f"{name}:{first_line}: the block is empty"
    assert lines[0].startswith("$ "), f"{name}:{first_line}: a console block begins with a command"
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        text, output = lines[start][2:], lines[start + 1 : end]
        while _continues(text) and output:
            text += "\n" + output.pop(0)
        interrupted = output[-1:] == [INTERRUPT]
        code = _EXITS.search(text)
        yield Command(
            place=f"{name}:{first_line + 1 + start}",
            text=text,
            expected="\n".join(output[:-1] if interrupted else output),
            interrupt=interrupted,
            code=int(code[1]) if code else 0,
        )


def _continues(text: str) -> bool:
    return text.endswith("\\") or text.count("'") % 2 == 1
