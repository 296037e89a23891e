"""Whether a file can be read as an event log: what its name, its size and its first bytes say.

Used to find logs once, and while applications run; in the executors, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

from blocklist.detection.decoders import Decoder
from blocklist.detection.log_file import COMPACT, IN_PROGRESS, LogFile, without_status_suffix

MAX_COMPRESSED_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of a compressed log: it is held in memory. Spark rolls logs over at half of this size."""
HEAD: Final = 256
"""Number of bytes of a log that tell whether it begins with an event."""
COMPRESSED_HEAD: Final = 256 * 1024
"""Number of bytes of a compressed log that always contain these: zstd blocks have 128 KiB."""
NOT_AN_EVENT: Final = "it does not begin with an event"

_UNSUPPORTED: Final = ".lzf"
_EVENT: Final = re.compile(rb'\s*\{[^\n]*"Event"\s*:')
_BEGUN: Final = b'{"Event":'


def refusal(log: LogFile) -> str | None:
    """Why a file of this name and size is not read; None if it is."""
    name = without_status_suffix(log.name)
    if name.endswith(_UNSUPPORTED):
        return f"unsupported compression {name.rpartition('.')[2]}"
    if log.compressed and log.size > MAX_COMPRESSED_BYTES:
        maximum = MAX_COMPRESSED_BYTES // 2**20
        return f"a compressed log of {log.size / 2**20:,.0f} MiB; the maximum is {maximum} MiB"
    return None


def begins_with_event(head: bytes, *, is_open: bool = False) -> bool:
    """Whether a log of these first bytes begins with an event; one that `is_open` may hold only some of them so far."""
    return _EVENT.match(head) is not None or (is_open and _BEGUN.startswith(b"".join(head.split())))


def decoded_head(decode: Decoder, read: bytes) -> bytes:
    """The first bytes of a compressed log. Decodes no more than necessary: a few bytes may expand to gigabytes."""
    head = b""
    for at in range(0, len(read), HEAD):
        head += decode(read[at : at + HEAD])
        if len(head) >= HEAD:
            break
    return head[:HEAD]


def without_compacted(logs: Iterable[LogFile]) -> Iterator[LogFile]:
    """Drop the parts that a compacted part replaces, and one that is still being written. `logs`: sorted by path."""
    logs = (log for log in logs if not (log.rolled and log.name.endswith(COMPACT + IN_PROGRESS)))
    for _, group in groupby(logs, key=lambda log: log.folder if log.rolled else log.path):
        parts = list(group)
        since = max((log.index for log in parts if log.name.endswith(COMPACT)), default=0)
        yield from (log for log in parts if log.index > since or log.name.endswith(COMPACT) or not log.rolled)
