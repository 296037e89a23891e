"""YARN's exclude file in the plain format: names separated by white space; `#` begins a comment. Pure.

Entries between two marks belong to the manager; everything else belongs to others and stays the same, byte for byte.
The marks are comments: YARN ignores them, and they survive a restart of the manager. exclude_xml.py has the same
functions for the XML format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from blocklist.managers.plan import ManagerError

BEGIN_MARK: Final = "blocklist: begin"
END_MARK: Final = "blocklist: end"

Entries = Mapping[str, int | None]
"""Node name to timeout in seconds; -1 is no timeout, None an entry without the field."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSections:
    """The bytes before the marks, the entries between the marks, and the bytes after the marks.

    `others` are the names outside the marks, the entries of others.
    """

    before: bytes
    entries: Entries = field(default_factory=dict)
    after: bytes = b""
    others: tuple[str, ...] = ()


def parse(data: bytes) -> FileSections:
    """Split a plain file at the marks. Raises ManagerError if the marks are damaged."""
    lines = data.splitlines(keepends=True)
    begins = [number for number, line in enumerate(lines) if _is_mark(BEGIN_MARK, line)]
    ends = [number for number, line in enumerate(lines) if _is_mark(END_MARK, line)]
    if not begins and not ends:
        # After a last line without a line end the marks would need one, so they go to the begin of the file.
        at_end = not data or data.endswith(b"\n")
        before, after = (data, b"") if at_end else (b"", data)
        return FileSections(before=before, after=after, others=_names(lines))
    if len(begins) != 1 or len(ends) != 1 or begins > ends:
        raise damaged_marks(f"# {BEGIN_MARK}", f"# {END_MARK}")
    first, last = begins[0], ends[0]
    others = lines[:first] + lines[last + 1 :]
    return FileSections(
        before=b"".join(lines[:first]),
        entries=dict.fromkeys(_names(lines[first:last])),
        after=b"".join(lines[last + 1 :]),
        others=_names(others),
    )


def render(sections: FileSections, entries: Entries) -> bytes:
    """The file with these entries between the marks; without entries there are no marks either."""
    if not entries:
        return sections.before + sections.after
    lines = [f"# {BEGIN_MARK} (kept by blocklist.managers)", *sorted(entries), f"# {END_MARK}"]
    return sections.before + "".join(f"{line}\n" for line in lines).encode() + sections.after


def damaged_marks(begin: str, end: str) -> ManagerError:
    """It is unknown which entries belong to the manager."""
    return ManagerError(
        f"The marks in the exclude file are damaged: it must have one '{begin}' followed by one '{end}', or neither."
        " The file is left unchanged; repair it by hand."
    )


def _names(lines: Iterable[bytes]) -> tuple[str, ...]:
    words = b"".join(line.partition(b"#")[0] + b"\n" for line in lines).split()
    return tuple(word.decode(errors="replace") for word in words)


def _is_mark(mark: str, line: bytes) -> bool:
    return line.startswith(b"#") and line.lstrip(b"#").split()[:2] == mark.encode().split()
