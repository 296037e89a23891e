"""Streaming decoders of compressed event logs: zstd, lz4 and snappy as written by Spark, gzip as written by people."""

from __future__ import annotations

import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Protocol

import lz4.block  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]
import zstandard

from blocklist.detection.log_file import codec_of

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
BOMB: Final = f"(a decompression bomb: the log expands to more than {MAX_RATIO} times its size; skipped from here on)"
"""Line that stands for the rest of such a log."""
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
        self._rest = data[at:]

    @property
    def complete(self) -> bool:
        return not self._rest and not self.damaged


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
