"""Reads the lines of a log: plain text from any byte on, compressed logs from their start. Memory is bounded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from blocklist.detection.decoders import BOMB, Decoder
from blocklist.detection.log_file import IN_PROGRESS

BLOCK: Final = 256 * 1024
"""Number of bytes of a plain log that are read at once."""
CHUNK: Final = 128 * 1024
"""Number of bytes of a compressed log that are decoded at once."""
MAX_LINE: Final = 64 * 1024 * 1024
"""Maximum number of bytes of a line that is kept."""
LONG_LINE: Final = f"(a line of more than {MAX_LINE // 2**20} MiB)".encode()
"""Stands for a longer line."""
SKIPPED: Final = "(the file is skipped: "
"""Beginning of the line that stands for a file that is not read."""
DAMAGED: Final = b"(the file is damaged or truncated here)"


def open_log(name: str) -> BinaryIO:
    """Open a log, also if its application has ended or been continued meanwhile. Raises FileNotFoundError."""
    other = name.removesuffix(IN_PROGRESS) if name.endswith(IN_PROGRESS) else name + IN_PROGRESS
    try:
        return Path(name).open("rb")
    except FileNotFoundError:
        return Path(other).open("rb")


class LineSplitter:
    """Splits text that is passed in pieces into lines, without their ends. LONG_LINE stands for a long one.

    The beginning of a line is kept in the pieces that it came in: joining them each time would take quadratic time.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size = 0
        """Number of bytes of the line that has no end yet."""

    def split(self, piece: bytes) -> list[bytes]:
        """Return the lines that end in this piece."""
        find = piece.find  # several times as fast as bytes.split, which compares byte by byte
        end = find(b"\n")
        self._append(piece if end < 0 else piece[:end])
        if end < 0:
            return []
        lines, start = [self._line()], end + 1
        while (end := find(b"\n", start)) >= 0:
            lines.append(piece[start:end])
            start = end + 1
        self._pieces, self.size = [], 0
        self._append(piece[start:])
        return lines

    def last(self, *, is_open: bool) -> list[bytes]:
        """Return the line that has no end, if there is one. Of an open log it may be incomplete, and is left out."""
        return [self._line()] if self.size > (MAX_LINE if is_open else 0) else []

    def _append(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size > MAX_LINE:
            self._pieces = []
        else:
            self._pieces.append(piece)

    def _line(self) -> bytes:
        return LONG_LINE if self.size > MAX_LINE else b"".join(self._pieces)


def plain_lines(
    file: BinaryIO, start: int, end: int | None, *, is_open: bool = False, block: int = BLOCK
) -> Iterator[list[bytes]]:
    """Yield the lines that begin from byte `start` up to, not including, byte `end`, without their ends, in lists.

    `is_open`: the log is still being written.
    """
    read = at = _next_line(file, start, end)  # up to where it is read, and where the next line begins
    splitter = LineSplitter()
    while (end is None or at < end) and (piece := file.read(block)):
        lines = splitter.split(piece)
        read += len(piece)
        at = read - splitter.size
        yield lines if end is None else _begun_before(end, lines, at)
    if end is None or at < end:
        yield splitter.last(is_open=is_open)


def _next_line(file: BinaryIO, start: int, end: int | None) -> int:
    """Go to the first line that begins at byte `start` or later, and return its position.

    If none begins before byte `end`, the position is there or later.
    """
    if start == 0:
        return 0
    at = file.seek(start - 1)
    while (end is None or at < end) and (read := file.readline(BLOCK)):
        at += len(read)
        if read.endswith(b"\n"):
            break
    return at


def _begun_before(end: int, lines: list[bytes], at: int) -> list[bytes]:
    """The lines that begin before byte `end`, as the first one does. The line after them begins at byte `at`."""
    count = len(lines)
    while count > 1 and (at := at - len(lines[count - 1]) - 1) >= end:
        count -= 1
    return lines[:count]


def decoded_lines(content: Iterable[bytes], decode: Decoder, *, is_open: bool = False) -> Iterator[list[bytes]]:
    """Yield the lines of a compressed log, which is passed in pieces, in lists.

    A damaged or truncated log ends with the rest of its last line, or with a line that says so; not if it `is_open`, as
    it is still being written.
    """
    splitter = LineSplitter()
    for piece in content:
        lines = splitter.split(decode(piece))
        if decode.bomb:
            yield [*lines, BOMB.encode()]
            return
        yield lines
    if last := splitter.last(is_open=is_open):
        yield last
    elif not (decode.complete or is_open):
        yield [DAMAGED]


def skipped(reason: str) -> bytes:
    """The line that stands for a file that is not read."""
    return f"{SKIPPED}{reason})".encode()


def unreadable(error: OSError) -> bytes:
    """The line that stands for a file, or the rest of one, that cannot be read."""
    return f"(the file cannot be read: {error.strerror or error})".encode()


def pieces(content: memoryview) -> Iterator[bytes]:
    """The pieces in which `decoded_lines` takes a compressed log that is in memory."""
    for at in range(0, len(content), CHUNK):
        yield bytes(content[at : at + CHUNK])


def file_pieces(file: BinaryIO) -> Iterator[bytes]:
    """The pieces in which `decoded_lines` takes a compressed log that is a file."""
    while piece := file.read(CHUNK):
        yield piece
