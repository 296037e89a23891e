"""What the names say that Spark and Hadoop give to files."""

from __future__ import annotations

from typing import Final

OPEN: Final = ".inprogress"
"""How the name of a log ends that is being written, or whose application was killed."""
STATUS: Final = "appstatus_"
"""How the name of the file begins that says whether a rolled log is being written."""
COMPACT: Final = ".compact"


def hidden(name: str) -> bool:
    """Whether a file or folder of this name holds no log: by Hadoop's custom, a checksum, or an empty status file."""
    return name.startswith((".", "_", STATUS)) or name.endswith(".crc")


def bare(name: str) -> str:
    """The name without what Spark puts behind the ending that names the codec."""
    return name.removesuffix(OPEN).removesuffix(COMPACT)
