"""Decoders of compressed logs: complete, truncated and damaged, in pieces of any size."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Iterator

import lz4.block  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from blocklist.detection.log_file import BOMB, DAMAGED, FREE_BYTES, MAX_RATIO, Decoder, decoded_lines, decoder_for

TEXT = b"".join(b'{"Event":"%d"}\n' % number for number in range(20_000))
CONTENTS = st.lists(st.binary(max_size=2000), max_size=4)


def _lz4(content: bytes) -> bytes:
    """As lz4-java does it: blocks, then an empty one."""
    blocks = [content[at : at + 1000] for at in range(0, len(content), 1000)]
    out = b""
    for block in blocks:
        packed = lz4.block.compress(block, store_size=False)
        raw = len(packed) >= len(block)
        body = block if raw else packed
        out += struct.pack("<8sBiiI", b"LZ4Block", 0x10 if raw else 0x20, len(body), len(block), 0) + body
    return out + struct.pack("<8sBiiI", b"LZ4Block", 0x10, 0, 0, 0)


def _snappy(content: bytes) -> bytes:
    """As snappy-java does it: a header, then blocks."""
    out = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    for at in range(0, len(content), 1000):
        block = pa.compress(content[at : at + 1000], "snappy", asbytes=True)
        out += struct.pack(">i", len(block)) + block
    return out


PACKS: dict[str, Callable[[bytes], bytes]] = {
    "app-1.zstd": lambda content: zstandard.ZstdCompressor().compress(content),
    "app-1.lz4": _lz4,
    "app-1.snappy": _snappy,
    "app-1.gz": gzip.compress,
}


def _decoder(name: str) -> Decoder:
    made = decoder_for(name)
    assert made is not None
    return made


@pytest.mark.parametrize("name", PACKS)
def test_a_log_that_is_cut_anywhere_in_its_last_frame_is_named(name: str) -> None:
    """Also where what is left ends like a line."""
    first, last = (PACKS[name](b'{"Event":"%d"}' % number + b"\n") for number in (1, 2))
    whole = first + last
    for end in range(len(first) + 1, len(whole)):
        lines = [line for some in decoded_lines([whole[:end]], _decoder(name)) for line in some]
        # Only snappy's format has no sign of its end: a cut between two blocks cannot be seen.
        complete = name.endswith(".snappy") and _decoder_after(name, whole[:end]).complete
        assert complete or lines[-1] is DAMAGED, end
    assert DAMAGED not in [line for some in decoded_lines([whole], _decoder(name)) for line in some]


def _decoder_after(name: str, content: bytes) -> Decoder:
    decode = _decoder(name)
    decode(content)
    return decode


@pytest.mark.parametrize("name", PACKS)
@settings(deadline=None)
@given(contents=CONTENTS, size=st.integers(1, 5000))
def test_concatenated_streams_decode_in_pieces_of_any_size(name: str, contents: list[bytes], size: int) -> None:
    packed = b"".join(map(PACKS[name], contents))
    decode = _decoder(name)
    out = b"".join(decode(packed[at : at + size]) for at in range(0, len(packed), size))
    assert out == b"".join(contents)
    assert decode.complete


@pytest.mark.parametrize("name", PACKS)
@settings(deadline=None)
@given(share=st.floats(0.01, 0.99))
def test_a_truncated_stream_decodes_up_to_its_end(name: str, share: float) -> None:
    packed = PACKS[name](TEXT)
    decode = _decoder(name)
    assert TEXT.startswith(decode(packed[: int(len(packed) * share)]))
    assert not decode.complete or name.endswith(("lz4", "snappy"))  # of these, between two blocks nothing tells


@pytest.mark.parametrize("name", PACKS)
@settings(deadline=None)
@given(share=st.floats(0.2, 0.9), junk=st.binary(min_size=64, max_size=64))
def test_damaged_data_raises_nothing(name: str, share: float, junk: bytes) -> None:
    packed = bytearray(PACKS[name](TEXT))
    at = int((len(packed) - len(junk)) * share)
    packed[at : at + len(junk)] = junk
    _decoder(name)(bytes(packed))


@pytest.mark.parametrize("name", PACKS)
def test_data_before_the_damage_is_decoded(name: str) -> None:
    decode = _decoder(name)
    assert decode(PACKS[name](TEXT) + b"no block begins like this") == TEXT
    assert decode.damaged
    assert decode(PACKS[name](TEXT)) == b""


def _bomb(name: str) -> Iterator[bytes]:
    """Pieces of a log of 512 MiB of zeros (lz4: blocks of 64 MiB, at most 255 times smaller)."""
    if name.endswith("lz4"):
        block = lz4.block.compress(bytes(1 << 26), store_size=False)
        yield from [struct.pack("<8sBiiI", b"LZ4Block", 0x20, len(block), 1 << 26, 0) + block] * 8
        return
    compress = zstandard.ZstdCompressor().compressobj() if name.endswith("zstd") else zlib.compressobj(wbits=31)
    packed = b"".join(compress.compress(bytes(1 << 20)) for _ in range(512)) + compress.flush()
    yield from (packed[at : at + 131_072] for at in range(0, len(packed), 131_072))


@pytest.mark.parametrize("name", ["app-1.zstd", "app-1.lz4", "app-1.gz"])  # snappy expands at most 21 times
def test_a_decompression_bomb_is_damaged_and_expands_to_a_bounded_size(name: str) -> None:
    decode = _decoder(name)
    sizes = [len(decode(piece)) for piece in _bomb(name)]
    assert decode.bomb
    assert decode.damaged
    assert not decode.complete
    assert sum(sizes) <= FREE_BYTES + MAX_RATIO * 131_072 * 8


@pytest.mark.parametrize("name", ["app-1.zstd", "app-1.gz"])
def test_a_decompression_bomb_in_a_log_is_reported_and_the_events_before_it_are_kept(name: str) -> None:
    head = PACKS[name](b'{"Event":"SparkListenerLogStart","Spark Version":"4.3.0"}\n')
    found = [line for lines in decoded_lines([head, *_bomb(name)], _decoder(name)) for line in lines]
    assert found[0] == b'{"Event":"SparkListenerLogStart","Spark Version":"4.3.0"}'
    assert found[-1] == BOMB


@pytest.mark.parametrize("name", ["app-1", "app-1.inprogress", "events_1_app-1", "app-1.log"])
def test_plain_text_needs_no_decoder(name: str) -> None:
    assert decoder_for(name) is None


@pytest.mark.parametrize("name", ["app-1.zstd.inprogress", "events_1_app-1.zstd.compact"])
def test_suffixes_after_the_codec_are_ignored(name: str) -> None:
    assert decoder_for(name) is not None
