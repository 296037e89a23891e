"""Blocked nodes as Java serializes them. Pure.

To make thousands of objects in the JVM, one by one, takes seconds, in which no lease is renewed: so they pass as one
array of bytes. See the Java Object Serialization Specification, chapter 6.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from blocklist.flink.marking import NodeLease

_CLASS: Final = "org.apache.flink.runtime.blocklist.BlockedNode"
_HEADER: Final = b"\xac\xed\x00\x05"
_OBJECT, _CLASS_DESC, _REFERENCE, _STRING = b"\x73", b"\x72", b"\x71", b"\x74"
_END, _NULL, _BLOCK = b"\x78", b"\x70", b"\x77"
_ARRAY_LIST_VERSION: Final = 0x7881D21D99C7619D
_BLOCKED_NODE_HANDLE: Final = 0x7E0002
"""The third thing in the stream that can be referred to, after the class of the list and the list."""


def serialize_nodes(blocks: Sequence[NodeLease]) -> bytes:
    """An ArrayList of Flink's BlockedNode."""
    size = struct.pack(">i", len(blocks))
    fields = b"\x03\x00\x01I" + _text("size")
    parts = [_HEADER, _OBJECT, _class("java.util.ArrayList", _ARRAY_LIST_VERSION, fields), size, _BLOCK, b"\x04", size]
    described = False
    for block in blocks:
        kind = _REFERENCE + struct.pack(">i", _BLOCKED_NODE_HANDLE) if described else _blocked_node_class()
        end = struct.pack(">q", block.end)
        parts += [_OBJECT, kind, end, _STRING, _text(block.cause), _STRING, _text(block.node)]
        described = True
    return b"".join([*parts, _END])


def _blocked_node_class() -> bytes:
    string = _STRING + _text("Ljava/lang/String;")
    # Primitive fields come first, each kind in the order of names.
    fields = b"\x02\x00\x03J" + _text("endTimestamp") + b"L" + _text("cause") + string + b"L" + _text("nodeId") + string
    return _class(_CLASS, 1, fields)


def _class(name: str, version: int, fields: bytes) -> bytes:
    return _CLASS_DESC + _text(name) + struct.pack(">q", version) + fields + _END + _NULL


def _text(text: str) -> bytes:
    """Modified UTF-8: pairs of surrogates one by one, and two bytes for NUL."""
    if not text.isascii() or "\0" in text:
        units = text.encode("utf-16-be", "surrogatepass")
        chars = (chr(unit) for (unit,) in struct.iter_unpack(">H", units))
        encoded = b"".join(it.encode("utf-8", "surrogatepass") if it != "\0" else b"\xc0\x80" for it in chars)
    else:
        encoded = text.encode("ascii")
    return struct.pack(">H", len(encoded)) + encoded
