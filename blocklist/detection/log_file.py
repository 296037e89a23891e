"""A file of an event log, and what its name says about it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

IN_PROGRESS: Final = ".inprogress"
"""Suffix of a log that is being written, or whose application was killed."""
STATUS_PREFIX: Final = "appstatus_"
"""Prefix of the file whose suffix tells whether a rolled log is in progress."""
COMPACT: Final = ".compact"
CODECS: Final = (".zstd", ".lz4", ".snappy", ".gz")
"""Suffixes of the supported compression codecs."""

_ROLLED: Final = "eventlog_v2_"
_EVENTS: Final = re.compile(r"events_(\d+)_")
_DATABRICKS: Final = re.compile(r"eventlog(?:-[\d-]+)?(?:\.gz)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class LogFile:
    """A log, or one part of a rolled log. A file in progress may end in the middle of a line."""

    path: str
    size: int
    in_progress: bool

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
