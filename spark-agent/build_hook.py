"""The wheel contains the jar, where what building it needs is here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The build runs this file alone.
sys.path.insert(0, str(Path(__file__).parent))
import build


class JarHook(BuildHookInterface[Any]):
    """Builds the jar and adds it to the wheel, which says so if it goes without; an editable install has `make jar`."""

    def dependencies(self) -> list[str]:
        """An isolated build has no PySpark unless it is asked for: half a gigabyte, so only if it is of use."""
        return [] if build.is_current() or not build.find_javac() else ["pyspark==4.3.0"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        try:
            build.build()
        except build.MissingError as error:
            self.app.display_warning(str(error))
        else:
            build_data["force_include"][str(build.JAR)] = "blocklist/spark/blocklist-spark.jar"
