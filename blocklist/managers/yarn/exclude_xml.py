"""YARN's exclude file in the XML format, where each node can have a timeout. Pure.

`<hosts><host><name>…</name><timeout>seconds</timeout></host></hosts>`. Of several entries with the same name YARN uses
the last: the manager's entries come first, so that a timeout set by others wins. Marks are as in exclude_file.py.
"""

from __future__ import annotations

from typing import Final
from xml.parsers.expat import ExpatError, ParserCreate

from blocklist.managers.plan import ManagerError
from blocklist.managers.yarn.exclude_file import BEGIN_MARK, END_MARK, Entries, FileSections, damaged_marks

_EMPTY_FILE: Final = b'<?xml version="1.0"?>\n<hosts>\n</hosts>\n'
_INDENT: Final = b"\n  "


def parse(data: bytes) -> FileSections:
    """Split the file at the marks. Raises ManagerError for malformed XML, UTF-16 or UTF-32, and damaged marks."""
    if b"\0" in data:
        raise ManagerError("The exclude file is XML in UTF-16 or UTF-32: save it as UTF-8.")
    scanner = _XmlScanner(data if data.strip() else _EMPTY_FILE)
    if not scanner.begins and not scanner.ends:
        return scanner.split_at_root()
    if len(scanner.begins) != 1 or len(scanner.ends) != 1 or scanner.begins > scanner.ends:
        raise damaged_marks(f"<!-- {BEGIN_MARK} -->", f"<!-- {END_MARK} -->")
    first, last = scanner.begins[0], data.index(b"-->", scanner.ends[0]) + 3
    if data[:first].endswith(_INDENT):
        first -= len(_INDENT)
    return FileSections(before=data[:first], entries=scanner.entries, after=data[last:], others=tuple(scanner.others))


def render(sections: FileSections, entries: Entries) -> bytes:
    """The file with these entries between the marks; without entries there are no marks either."""
    if not entries:
        return sections.before + sections.after
    lines = [f"<!-- {BEGIN_MARK} (kept by blocklist.managers) -->"]
    for name, timeout in sorted(entries.items()):
        seconds = "" if timeout is None else f"<timeout>{timeout}</timeout>"
        lines.append(f"<host><name>{name}</name>{seconds}</host>")
    lines.append(f"<!-- {END_MARK} -->")
    return sections.before + b"".join(_INDENT + line.encode() for line in lines) + sections.after


class _XmlScanner:
    """Finds the marks and the entries between them. Positions are byte offsets in the file."""

    def __init__(self, data: bytes) -> None:
        """Raises ManagerError for malformed XML."""
        self.begins: list[int] = []
        self.ends: list[int] = []
        self.entries: dict[str, int | None] = {}
        self.others: list[str] = []
        self._data = data
        self._open_tags: list[str] = []
        self._root_start = 0
        self._content_start: int | None = None
        self._text = {"name": "", "timeout": ""}
        self._parser = parser = ParserCreate()
        parser.StartElementHandler = self._start_element
        parser.EndElementHandler = self._end_element
        parser.CharacterDataHandler = self._characters
        parser.CommentHandler = self._comment
        parser.ProcessingInstructionHandler = lambda *_: self._mark_content_start()
        try:
            parser.Parse(data, True)
        except ExpatError as error:
            raise ManagerError(f"The exclude file is not well-formed XML: {error}.") from error

    def split_at_root(self) -> FileSections:
        """Split after the start tag of the root; `<hosts/>` is expanded to a start and an end tag."""
        if self._content_start is not None:
            before, after = self._data[: self._content_start], self._data[self._content_start :]
            return FileSections(before=before, after=after, others=tuple(self.others))
        close = self._data.index(b"/>", self._root_start)
        name = self._data[self._root_start + 1 : close].split()[0]
        return FileSections(
            before=self._data[:close].rstrip() + b">", after=b"\n</" + name + b">" + self._data[close + 2 :]
        )

    def _mark_content_start(self) -> None:
        """The first event inside the root is where its start tag ends."""
        if self._open_tags and self._content_start is None:
            self._content_start = self._parser.CurrentByteIndex

    def _start_element(self, name: str, _attributes: object) -> None:
        self._mark_content_start()
        if not self._open_tags:
            self._root_start = self._parser.CurrentByteIndex
        self._open_tags.append(name)
        if name == "host":
            self._text = {"name": "", "timeout": ""}

    def _end_element(self, name: str) -> None:
        if self._data.startswith(b"</", self._parser.CurrentByteIndex):
            self._mark_content_start()
        self._open_tags.pop()
        if name != "host":
            return
        if self.begins and not self.ends:
            timeout = self._text["timeout"].strip()
            self.entries[self._text["name"].strip()] = int(timeout) if timeout.lstrip("-").isdecimal() else None
        else:
            # One entry of others may have several names (HostsFileReader).
            self.others += filter(None, map(str.strip, self._text["name"].split(",")))

    def _characters(self, text: str) -> None:
        self._mark_content_start()
        if self._open_tags[-1] in self._text:
            self._text[self._open_tags[-1]] += text

    def _comment(self, text: str) -> None:
        self._mark_content_start()
        for mark, places in ((BEGIN_MARK, self.begins), (END_MARK, self.ends)):
            if self._open_tags and text.split()[:2] == mark.split():
                places.append(self._parser.CurrentByteIndex)
