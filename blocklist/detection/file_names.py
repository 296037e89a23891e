"""What the names say that Spark and Hadoop give to files."""

from __future__ import annotations

from typing import Final

IN_PROGRESS: Final = ".inprogress"
"""How the name of a log ends that is being written, or whose application was killed."""
STATUS_PREFIX: Final = "appstatus_"
"""How the name of the file begins that says whether a rolled log is being written."""
COMPACT: Final = ".compact"


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name holds no log: by Hadoop's custom, a checksum, or an empty status file."""
    return name.startswith((".", "_", STATUS_PREFIX)) or name.endswith(".crc")


def without_status_suffix(name: str) -> str:
    """The name without what Spark puts behind the ending that names the codec."""
    return name.removesuffix(IN_PROGRESS).removesuffix(COMPACT)
