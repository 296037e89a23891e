"""The agent's jar, which is part of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

JAR_NAME: Final = "blocklist-spark.jar"
LISTENER_CLASS: Final = "blocklist.spark.BlocklistListener"
"""The listener in the jar that starts the agent."""


def jar_path() -> Path:
    """The path of the jar in this installation. Raises FileNotFoundError if it has none."""
    path = Path(__file__).resolve().with_name(JAR_NAME)
    if not path.is_file():
        raise FileNotFoundError(str(path))
    return path
