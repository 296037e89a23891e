"""YARN's exclude file as text: our part between two marks, all else untouched. Pure.

The marks are comments, so they survive a restart of ours and mean nothing to YARN. What stands between them is ours;
what stands elsewhere belongs to somebody else and stays as it is, byte for byte. A plain file holds names parted by
white space, and `#` begins a comment; for the other form see exclude_xml.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from blocklist.managers.plan import ManagerError

BEGIN_MARK: Final = "blocklist: begin"
END_MARK: Final = "blocklist: end"

Entries = Mapping[str, int | None]
"""Name to timeout in seconds: None where the file gives none, -1 for one without end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSections:
    """A file in three: what stands before our part and after it, and our entries."""

    before: bytes
    entries: Entries = field(default_factory=dict)
    after: bytes = b""


def parse(data: bytes) -> FileSections:
    """Find our part of a plain file. Raises ManagerError if our marks in it are damaged."""
    lines = data.splitlines(keepends=True)
    begins = [number for number, line in enumerate(lines) if _is_mark(BEGIN_MARK, line)]
    ends = [number for number, line in enumerate(lines) if _is_mark(END_MARK, line)]
    if not begins and not ends:
        # A last line without a line end is somebody else's entry.
        return FileSections(before=data if not data or data.endswith(b"\n") else data + b"\n")
    if len(begins) != 1 or len(ends) != 1 or begins > ends:
        raise damaged_marks(f"# {BEGIN_MARK}", f"# {END_MARK}")
    first, last = begins[0], ends[0]
    names = b"".join(line.partition(b"#")[0] + b"\n" for line in lines[first:last]).split()
    entries = {name.decode(errors="replace"): None for name in names}
    return FileSections(before=b"".join(lines[:first]), entries=entries, after=b"".join(lines[last + 1 :]))


def render(sections: FileSections, entries: Entries) -> bytes:
    """The file with these entries in our part; without any there are no marks either."""
    if not entries:
        return sections.before + sections.after
    lines = [f"# {BEGIN_MARK} (kept by blocklist.managers)", *sorted(entries), f"# {END_MARK}"]
    return sections.before + "".join(f"{line}\n" for line in lines).encode() + sections.after


def damaged_marks(begin: str, end: str) -> ManagerError:
    """Nobody can say what is ours."""
    return ManagerError(
        f"The marks in the exclude file are damaged: there must be one '{begin}' and, after it, one '{end}', or"
        " neither. Mend it by hand; until then it is left as it is."
    )


def _is_mark(mark: str, line: bytes) -> bool:
    return line.startswith(b"#") and line.lstrip(b"#").split()[:2] == mark.encode().split()
