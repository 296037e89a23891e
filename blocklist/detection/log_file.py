"""A file of an event log, and what its name says about it."""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import lz4.block  # type: ignore[import-untyped]
import pyarrow as pa
import zstandard

IN_PROGRESS: Final = ".inprogress"
"""Suffix of a log that is being written, or whose application was killed."""
STATUS_PREFIX: Final = "appstatus_"
"""Prefix of the file whose suffix tells whether a rolled log is in progress."""
COMPACT: Final = ".compact"
LOCAL: Final = "file:"
"""Prefix of the paths of local logs."""
CODECS: Final = (".zstd", ".lz4", ".snappy", ".gz")
"""Suffixes of the supported compression codecs."""

_ROLLED: Final = "eventlog_v2_"
_EVENTS: Final = re.compile(r"events_(\d+)_")
_DATABRICKS: Final = re.compile(r"eventlog(?:-[\d-]+)?(?:\.gz)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class LogFile:
    """A log, or one part of a rolled log. A file in progress may end in the middle of a line.

    `root` is the local file or folder that was given, at or below which it was found; `owner` is whose file it is,
    empty if that is unknown; `modified` is when a local file was last written (Unix s).
    """

    path: str
    size: int
    in_progress: bool
    root: str | None = None
    owner: str = ""
    modified: float = 0

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def rolled(self) -> bool:
        """Whether this is one part of several, as Spark rolls logs."""
        return self.folder.rpartition("/")[2].startswith(_ROLLED) and _EVENTS.match(self.name) is not None

    @property
    def log(self) -> str:
        """The path that all parts of one log share: the folder of parts, else the file."""
        return self.folder if self.rolled or is_databricks_part(self.name) else self.path

    @property
    def index(self) -> int:
        """The number of the part, from 1; 0 if the log is not rolled."""
        number = _EVENTS.match(self.name) if self.rolled else None
        return int(number[1]) if number else 0

    @property
    def compressed(self) -> bool:
        return codec_of(self.name) is not None


def log_of(path: str) -> str:
    """The path that all parts of one log share."""
    return LogFile(path=path, size=0, in_progress=False).log


def is_databricks_part(name: str) -> bool:
    """Whether a file is one part of a log as Databricks delivers it: `eventlog` and `eventlog-<time>.gz`."""
    return _DATABRICKS.fullmatch(name) is not None


def codec_of(name: str) -> str | None:
    """Return the codec's suffix, e.g. `.zstd`; None for plain text."""
    stem = without_status_suffix(name)
    return next((codec for codec in CODECS if stem.endswith(codec)), None)


def without_status_suffix(name: str) -> str:
    """Remove the suffixes that Spark appends after the codec's."""
    return name.removesuffix(IN_PROGRESS).removesuffix(COMPACT)


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name holds no events: hidden in Hadoop, a checksum or a status file."""
    return name.startswith((".", "_", STATUS_PREFIX)) or name.endswith(".crc")


# Streaming decoders of compressed event logs: zstd, lz4 and snappy as written by Spark, gzip as written by people.

_HEADER: Final = struct.Struct("<8sBiiI")  # magic, method and level, both lengths, checksum: lz4-java's stem format
_MAGIC: Final = b"LZ4Block"
_RAW: Final = 0x10
_SNAPPY_MAGIC: Final = b"\x82SNAPPY\0"  # no block is as long as these bytes would say
_SNAPPY_HEADER: Final = len(_SNAPPY_MAGIC) + 8  # bytes of the magic, the version and the oldest compatible one
_LENGTH: Final = 4  # bytes
_MAX_BLOCK: Final = 64 * 1024 * 1024  # bytes of one block; lz4-java allows 32 MiB
MAX_RATIO: Final = 200
"""Maximum expansion of a log. Event logs compress to a tenth or a thirtieth of their size."""
FREE_BYTES: Final = 64 * 1024 * 1024
"""Number of bytes that a log may expand to at any ratio."""
_STEP: Final = 256  # bytes passed to zlib or zstd at once: at most 64 zstd blocks of 128 KiB


class Decoder(ABC):
    """Decodes a file that is passed in pieces, in order.

    After damaged data it returns nothing more and sets `damaged`; it raises nothing. What came before is valid. A file
    that expands to more than FREE_BYTES and MAX_RATIO times its size is a decompression bomb: it counts as damaged from
    there on, and sets `bomb`.
    """

    damaged = False
    bomb = False
    _received = 0
    _returned = 0

    def __call__(self, piece: bytes) -> bytes:
        """Return the data that this piece completes."""
        if self.damaged:
            return b""
        self._received += len(piece)
        out: list[bytes] = []
        try:
            self.decode(piece, out)
        except (zstandard.ZstdError, zlib.error, lz4.block.LZ4BlockError, ValueError):
            self.damaged = True
        return b"".join(out)

    def append(self, data: bytes, out: list[bytes]) -> None:
        """Append decoded data to `out`. Raises ValueError if the file is a decompression bomb."""
        self._returned += len(data)
        if self._returned > FREE_BYTES + MAX_RATIO * self._received:
            self.bomb = True
            raise ValueError("a decompression bomb")
        out.append(data)

    @abstractmethod
    def decode(self, piece: bytes, out: list[bytes]) -> None:
        """Append the data that this piece completes to `out`. Raises ValueError or the library's error if damaged."""

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether the file may end here: it is neither damaged nor truncated."""


class _Frame(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class _FramedDecoder(Decoder):
    """A sequence of zstd frames or gzip members."""

    def __init__(self) -> None:
        self._frame: _Frame | None = None

    @abstractmethod
    def new_frame(self) -> _Frame:
        """Return a decompressor for the next frame."""

    def decode(self, piece: bytes, out: list[bytes]) -> None:
        for at in range(0, len(piece), _STEP):
            self._decode_step(piece[at : at + _STEP], out)

    def _decode_step(self, piece: bytes, out: list[bytes]) -> None:
        while piece:
            self._frame = self._frame or self.new_frame()
            self.append(self._frame.decompress(piece), out)
            if not self._frame.eof:
                break
            piece, self._frame = self._frame.unused_data, None

    @property
    def complete(self) -> bool:
        return self._frame is None and not self.damaged


class _Zstd(_FramedDecoder):
    def new_frame(self) -> Any:
        return zstandard.ZstdDecompressor().decompressobj()


class _Gzip(_FramedDecoder):
    def new_frame(self) -> Any:
        return zlib.decompressobj(wbits=31)


class _Lz4(Decoder):
    """Blocks with a header each. A block of length 0 ends a stream, after which another may follow."""

    def __init__(self) -> None:
        self._rest = b""
        self._ended = True

    def decode(self, piece: bytes, out: list[bytes]) -> None:
        data, at = self._rest + piece, 0
        while len(data) - at >= _HEADER.size:
            magic, token, packed, length, _ = _HEADER.unpack_from(data, at)
            if magic != _MAGIC or not (0 <= packed <= _MAX_BLOCK and 0 <= length <= _MAX_BLOCK):
                raise ValueError("not the start of a block")
            start = at + _HEADER.size
            if len(data) < start + packed:
                break
            block = data[start : start + packed]
            raw = token & 0xF0 == _RAW
            self.append(block if raw else lz4.block.decompress(block, uncompressed_size=length), out)
            at = start + packed
            self._ended = length == 0
        self._rest = data[at:]

    @property
    def complete(self) -> bool:
        return self._ended and not self._rest and not self.damaged


class _Snappy(Decoder):
    """A header, then blocks, each after its length: snappy-java's stream format. Another stream may follow."""

    def __init__(self) -> None:
        self._rest = b""
        self._begun = False
        self._codec = pa.Codec("snappy")

    def decode(self, piece: bytes, out: list[bytes]) -> None:
        data, at = self._rest + piece, 0
        while len(data) - at >= _LENGTH:
            is_header = data.startswith(_SNAPPY_MAGIC[:_LENGTH], at)
            packed = int.from_bytes(data[at : at + _LENGTH], "big")
            start, end = (at, at + _SNAPPY_HEADER) if is_header else (at + _LENGTH, at + _LENGTH + packed)
            if not is_header and (packed > _MAX_BLOCK or not self._begun):
                raise ValueError("not the start of a block")
            if len(data) < end:
                break
            if is_header:
                self._begin(data[start:end])
            else:
                self.append(self._unpacked(data[start:end]), out)
            at = end
        self._rest = data[at:]

    def _begin(self, header: bytes) -> None:
        if not header.startswith(_SNAPPY_MAGIC):
            raise ValueError("not a header")
        self._begun = True

    def _unpacked(self, block: bytes) -> bytes:
        try:
            unpacked: bytes = self._codec.decompress(block, decompressed_size=_snappy_size(block), asbytes=True)
        except OSError as error:
            raise ValueError(str(error)) from None
        return unpacked

    @property
    def complete(self) -> bool:
        return not self._rest and not self.damaged


def _snappy_size(block: bytes) -> int:
    """Number of bytes of a snappy block when unpacked: at its start, 7 bits a byte, the lowest first."""
    size = 0
    for number, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * number)
        if byte < 0x80 and size <= _MAX_BLOCK:
            return size
    raise ValueError("not the start of a block")


_DECODERS: Final[dict[str, Callable[[], Decoder]]] = {
    ".zstd": _Zstd,
    ".lz4": _Lz4,
    ".snappy": _Snappy,
    ".gz": _Gzip,
}


def decoder_for(name: str) -> Decoder | None:
    """Return a new decoder for a file of this name; None for plain text."""
    codec = codec_of(name)
    return None if codec is None else _DECODERS[codec]()


# Local files and folders. Below what was given, links are not followed: whoever may write there would choose what is
# read, with the rights of the one who reads it.

MAX_DEPTH: Final = 32
"""Maximum number of folders in each other."""


@dataclass(frozen=True, slots=True)
class Unread:
    """A file or folder that is not read, and why, in a sentence."""

    path: str
    sentence: str


def local_files(root: str) -> Iterator[LogFile | Unread]:
    """The files at or below a path, without hidden ones. What is given itself may be hidden, or a link.

    An error concerns the folder or file alone in which it happens. What vanishes meanwhile is left out.
    """
    try:
        info = Path(root).stat()
        if not stat.S_ISDIR(info.st_mode):
            yield _local_file(root, root, info)
            return
        opened = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        yield _unreadable(root, error)
        return
    yield from _files_below(opened, root, root, 0)


def _files_below(opened: int, path: str, root: str, depth: int) -> Iterator[LogFile | Unread]:
    """Closes the folder."""
    try:
        with os.scandir(opened) as entries:
            named = sorted((entry for entry in entries), key=lambda entry: entry.name)
        found: list[LogFile | Unread] = []
        for entry in named:
            if not is_hidden(entry.name):
                found += _found(opened, entry, f"{path.rstrip('/')}/{entry.name}", root, depth)
    except OSError as error:
        yield _unreadable(path, error)
        return
    finally:
        os.close(opened)
    is_open = any(it.name.startswith(STATUS_PREFIX) and it.name.endswith(IN_PROGRESS) for it in named)
    yield from mark_last_in_progress(found) if is_open else found


def mark_last_in_progress(found: Sequence[LogFile | Unread]) -> list[LogFile | Unread]:
    """Of a rolled log in progress, only the last part is still being written."""
    last = max((it.index for it in found if isinstance(it, LogFile)), default=0)
    return [replace(it, in_progress=True) if isinstance(it, LogFile) and it.index == last else it for it in found]


def _found(opened: int, entry: os.DirEntry[str], path: str, root: str, depth: int) -> Iterator[LogFile | Unread]:
    try:
        if not entry.is_dir(follow_symlinks=False):
            yield _local_file(path, root, entry.stat(follow_symlinks=False))
        elif depth == MAX_DEPTH:
            yield Unread(path, f"{shown(f'{LOCAL}{path}')} is skipped: it is more than {MAX_DEPTH} folders deep.")
        else:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            yield from _files_below(os.open(entry.name, flags, dir_fd=opened), path, root, depth + 1)
    except FileNotFoundError:
        return
    except OSError as error:
        yield _unreadable(path, error)


def _local_file(path: str, root: str, info: os.stat_result) -> LogFile | Unread:
    if reason := _unsuitable(info.st_mode):
        return Unread(path, f"{shown(f'{LOCAL}{path}')} is skipped: {reason}.")
    return LogFile(
        path=f"{LOCAL}{path}",
        size=info.st_size,
        in_progress=path.endswith(IN_PROGRESS),
        root=root,
        owner=str(info.st_uid),
        modified=info.st_mtime,
    )


def _unsuitable(mode: int) -> str | None:
    """Why a file of this mode is not read; None if it is."""
    if stat.S_ISLNK(mode):
        return "it is a link"
    if stat.S_ISDIR(mode):
        return "it is a folder"
    return None if stat.S_ISREG(mode) else "it is not a regular file"


def _unreadable(path: str, error: OSError) -> Unread:
    return Unread(path, f"{shown(path)} cannot be read: {error.strerror or error}.")


def open_below(root: str | None, path: str) -> BinaryIO:
    """Open a file; no link below `root` is followed, which is the file itself, or its folder if it is not given.

    Raises OSError, also for a file that is not a regular one.
    """
    is_given = root is not None and path.removesuffix(IN_PROGRESS) == root.removesuffix(IN_PROGRESS)
    folder = str(Path(path).parent) if root is None or is_given else root
    *parents, name = Path(path).relative_to(folder).parts
    flags = os.O_RDONLY | os.O_CLOEXEC
    opened = os.open(folder, flags | os.O_DIRECTORY)
    try:
        for parent in parents:
            inner = os.open(parent, flags | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=opened)
            os.close(opened)
            opened = inner
        # A file that was given itself may be a link. A pipe must not wait for somebody who writes.
        link = 0 if is_given else os.O_NOFOLLOW
        file = os.open(name, flags | os.O_NONBLOCK | link, dir_fd=opened)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link") from None
        raise
    finally:
        os.close(opened)
    if reason := _unsuitable(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, reason)
    return os.fdopen(file, "rb")


def file_owner(path: str) -> str | None:
    """The owner of a local log; None if it is gone."""
    for name in (path.removeprefix(LOCAL), path.removeprefix(LOCAL) + IN_PROGRESS):
        with suppress(OSError):
            return str(Path(name).lstat().st_uid)
    return None


def is_text(name: str) -> bool:
    """Whether a name is UTF-8. Python has lone surrogates for the bytes that are not."""
    return not any("\ud800" <= char <= "\udfff" for char in name)


def shown(path: str) -> str:
    """A path as messages show it."""
    return path.encode(errors="replace").decode()


# Reads the lines of a log: plain text from any byte on, compressed logs from their start. Memory is bounded.

BLOCK: Final = 256 * 1024
"""Number of bytes of a plain log that are read at once."""
CHUNK: Final = 128 * 1024
"""Number of bytes of a compressed log that are decoded at once."""
MAX_LINE: Final = 64 * 1024 * 1024
"""Maximum number of bytes of a line that is kept."""
SKIPPED: Final = "(the file is skipped: "
"""Beginning of the note for a file that is not read."""


class Note(bytes):
    """Stands for something that is not read. Only notes are shown to people: no content of a file is."""


DAMAGED: Final = Note(b"(the file is damaged or truncated here)")


def open_log(name: str, root: str | None = None) -> BinaryIO:
    """Open a log, also if its application has ended or been continued meanwhile. Raises FileNotFoundError, OSError."""
    other = name.removesuffix(IN_PROGRESS) if name.endswith(IN_PROGRESS) else name + IN_PROGRESS
    error: OSError = FileNotFoundError(errno.ENOENT, "it is gone")
    for path in (name, other, name):  # again: it may be renamed just now
        try:
            return open_below(root, path)
        except FileNotFoundError:
            continue
        except OSError as found:  # such as a link that somebody made beside the log
            error = found
    raise error


BOMB: Final = Note(
    f"(a decompression bomb: the log expands to more than {MAX_RATIO} times its size; skipped from here on)".encode()
)
"""Stands for the rest of such a log."""
_MAX_AHEAD_MS: Final = 3_600_000
"""Milliseconds that a time in a log may be ahead of this machine's clock."""
IN_FUTURE: Final = Note(b"(a time in the future: is a clock wrong?)")
LONG_LINE: Final = Note(f"(a line of more than {MAX_LINE // 2**20} MiB)".encode())
"""Stands for a longer line."""


def latest_time() -> int:
    """The latest time that a log may have now (Unix ms). A later one would count as newer than any unblock."""
    return time.time_ns() // 1_000_000 + _MAX_AHEAD_MS


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

    A damaged or truncated log ends with a note that says so, in place of its last line; not if it `is_open`, as it is
    still being written.
    """
    splitter = LineSplitter()
    for piece in content:
        lines = splitter.split(decode(piece))
        if decode.bomb:
            yield [*lines, BOMB]
            return
        yield lines
    # A truncated log may end with what looks like a line.
    yield splitter.last(is_open=is_open) if decode.complete or is_open else [DAMAGED]


def skipped(reason: str) -> Note:
    """Stands for a file that is not read."""
    return Note(f"{SKIPPED}{reason})".encode())


def unreadable(error: OSError) -> Note:
    """Stands for a file, or the rest of one, that cannot be read."""
    return Note(f"(the file cannot be read: {error.strerror or error})".encode())


def pieces(content: memoryview) -> Iterator[bytes]:
    """The pieces in which `decoded_lines` takes a compressed log that is in memory."""
    for at in range(0, len(content), CHUNK):
        yield bytes(content[at : at + CHUNK])


def file_pieces(file: BinaryIO) -> Iterator[bytes]:
    """The pieces in which `decoded_lines` takes a compressed log that is a file."""
    while piece := file.read(CHUNK):
        yield piece
