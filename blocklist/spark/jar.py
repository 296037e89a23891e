"""The agent's jar, which is part of this package where it was built; a checkout has it after `make jar`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

JAR_NAME: Final = "blocklist-spark.jar"
PLUGIN_CLASS: Final = "blocklist.spark.BlocklistPlugin"
"""The plugin in the jar that starts the agent, also in a job with plugins and listeners of its own."""
_MISSING: Final = (
    f"This installation has no {JAR_NAME}, which a JDK compiles: run `make jar` in the checkout (`make run` does not),"
    " or build the wheel again where a JDK is installed."
)


def jar_path() -> Path:
    """The path of the jar in this installation. Raises FileNotFoundError, with what to do, if it has none."""
    path = Path(__file__).resolve().with_name(JAR_NAME)
    if not path.is_file():
        raise FileNotFoundError(_MISSING)
    return path
