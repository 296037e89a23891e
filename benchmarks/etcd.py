"""The part of etcd's gRPC that the benchmarks need, by hand: HTTP/2 frames, HPACK literals, protobuf fields.

A gRPC library in Python would take more CPU than etcd itself, and so distort the result.
"""

import struct
from collections.abc import Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0x0, 0x1, 0x4, 0x6, 0x8
ACK = END_STREAM = 0x1
END_HEADERS = 0x4
WIDE = 2**31 - 1
PUT, WATCH = "/etcdserverpb.KV/Put", "/etcdserverpb.Watch/Watch"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Encode an HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def hello() -> bytes:
    """Open a connection with windows so large that they need no update."""
    window = struct.pack(">HI", 0x4, WIDE)
    wider = struct.pack(">I", WIDE - 65535)
    return PREFACE + frame(SETTINGS, 0, 0, window) + frame(WINDOW_UPDATE, 0, 0, wider) + frame(SETTINGS, ACK, 0, b"")


def call(path: str, stream: int, message: bytes, *, last: bool) -> bytes:
    """Encode a gRPC call with its first message; `last` closes the stream on our side."""
    named = [(":path", path), (":authority", "etcd"), ("content-type", "application/grpc"), ("te", "trailers")]
    headers = b"\x83\x86" + b"".join(b"\x00" + _text(name) + _text(value) for name, value in named)
    flags = END_STREAM if last else 0
    return frame(HEADERS, END_HEADERS, stream, headers) + frame(DATA, flags, stream, grpc(message))


def grpc(message: bytes) -> bytes:
    """Encode a message with gRPC's prefix: not compressed, and its length."""
    return b"\x00" + struct.pack(">I", len(message)) + message


def _text(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()  # HPACK: a length below 127, no Huffman


def put_request(key: bytes, value: bytes) -> bytes:
    """`PutRequest{key, value}`."""
    return _field(1, key) + _field(2, value)


def watch_request(key: bytes, end: bytes) -> bytes:
    """`WatchRequest{create_request{key, range_end}}`."""
    return _field(1, _field(1, key) + _field(2, end))


def _field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(high) if high else bytes([low])


def frames(buffer: bytearray) -> Iterator[tuple[int, int, int, bytes]]:
    """Remove the complete frames from `buffer`; yield kind, flags, stream, payload."""
    while len(buffer) >= 9:
        length = int.from_bytes(buffer[:3], "big")
        if len(buffer) < 9 + length:
            return
        kind, flags, stream = struct.unpack(">BBI", buffer[3:9])
        payload = bytes(buffer[9 : 9 + length])
        del buffer[: 9 + length]
        yield kind, flags, stream, payload
