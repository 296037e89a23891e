"""YARN's exclude file as XML, which can give each node a timeout: our part between two marks. Pure.

`<hosts><host><name>…</name><timeout>seconds</timeout></host></hosts>`; a name may stand in several entries, and the
last one counts: ours stand first, so that somebody else's timeout wins. All else stays as it is, byte for byte.
"""

from __future__ import annotations

from typing import Final
from xml.parsers.expat import ExpatError, ParserCreate

from blocklist.managers.exclude_file import BEGIN, END, Entries, Parted, damaged
from blocklist.managers.plan import ManagerError

_EMPTY: Final = b'<?xml version="1.0"?>\n<hosts>\n</hosts>\n'
_LEAD: Final = b"\n  "


def part(data: bytes) -> Parted:
    """Find our part. Raises ManagerError if it is not XML in UTF-8 or the like, or if our marks are damaged."""
    if b"\0" in data:
        raise ManagerError("The exclude file is XML in an encoding of two bytes: write it in UTF-8.")
    reader = _Reader(data if data.strip() else _EMPTY)
    if not reader.begins and not reader.ends:
        return reader.unmarked()
    if len(reader.begins) != 1 or len(reader.ends) != 1 or reader.begins > reader.ends:
        raise damaged(f"<!-- {BEGIN} -->", f"<!-- {END} -->")
    first, last = reader.begins[0], data.index(b"-->", reader.ends[0]) + 3
    if data[:first].endswith(_LEAD):
        first -= len(_LEAD)
    return Parted(before=data[:first], entries=reader.entries, after=data[last:])


def join(parted: Parted, entries: Entries) -> bytes:
    """The file with these entries in our part; without any there are no marks either."""
    if not entries:
        return parted.before + parted.after
    lines = [f"<!-- {BEGIN} (kept by blocklist.managers) -->"]
    for name, timeout in sorted(entries.items()):
        seconds = "" if timeout is None else f"<timeout>{timeout}</timeout>"
        lines.append(f"<host><name>{name}</name>{seconds}</host>")
    lines.append(f"<!-- {END} -->")
    return parted.before + b"".join(_LEAD + line.encode() for line in lines) + parted.after


class _Reader:
    """Where the marks are, and the entries between them; places are in bytes from the start of the file."""

    def __init__(self, data: bytes) -> None:
        """Raises ManagerError for what is not XML."""
        self.begins: list[int] = []
        self.ends: list[int] = []
        self.entries: dict[str, int | None] = {}
        self._data = data
        self._open: list[str] = []
        self._root = 0
        self._inside: int | None = None
        self._text = {"name": "", "timeout": ""}
        self._parser = parser = ParserCreate()
        parser.StartElementHandler = self._started
        parser.EndElementHandler = self._ended
        parser.CharacterDataHandler = self._characters
        parser.CommentHandler = self._comment
        parser.ProcessingInstructionHandler = lambda *_: self._note()
        try:
            parser.Parse(data, True)
        except ExpatError as error:
            raise ManagerError(f"The exclude file is not XML: {error}.") from error

    def unmarked(self) -> Parted:
        """Parted right behind the root's start tag; `<hosts/>` is opened for it."""
        if self._inside is not None:
            return Parted(before=self._data[: self._inside], after=self._data[self._inside :])
        close = self._data.index(b"/>", self._root)
        name = self._data[self._root + 1 : close].split()[0]
        return Parted(before=self._data[:close].rstrip() + b">", after=b"\n</" + name + b">" + self._data[close + 2 :])

    def _note(self) -> None:
        """Whatever comes first in the root stands right behind its start tag."""
        if self._open and self._inside is None:
            self._inside = self._parser.CurrentByteIndex

    def _started(self, name: str, _attributes: object) -> None:
        self._note()
        if not self._open:
            self._root = self._parser.CurrentByteIndex
        self._open.append(name)
        if name == "host":
            self._text = {"name": "", "timeout": ""}

    def _ended(self, name: str) -> None:
        if self._data.startswith(b"</", self._parser.CurrentByteIndex):
            self._note()
        self._open.pop()
        if name == "host" and self.begins and not self.ends:
            timeout = self._text["timeout"].strip()
            self.entries[self._text["name"].strip()] = int(timeout) if timeout.lstrip("-").isdecimal() else None

    def _characters(self, text: str) -> None:
        self._note()
        if self._open[-1] in self._text:
            self._text[self._open[-1]] += text

    def _comment(self, text: str) -> None:
        self._note()
        for mark, places in ((BEGIN, self.begins), (END, self.ends)):
            if self._open and text.split()[:2] == mark.split():
                places.append(self._parser.CurrentByteIndex)
