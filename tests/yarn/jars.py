"""The jars of a YARN: PySpark's own, and what Maven adds to them, once, into a folder of the user's cache."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Final

import pyspark
import pytest

from tests.debian import MissingError, require

_POM: Final = Path(__file__).with_name("pom.xml")
_CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blocklist" / "yarn"
_NEEDED_OF_PYSPARK: Final = (
    "hadoop-client-api",
    "hadoop-client-runtime",
    "slf4j-api",
    "log4j",
    "jcl-over-slf4j",
    "commons-logging",
    "javax.servlet-api",
    "jakarta.",
    "jaxb",
    "py4j",
)
SPARK_JARS: Final = Path(pyspark.__file__).parent / "jars"


def yarn_classpath() -> list[str]:
    """The jars of a ResourceManager and NodeManagers. Raises MissingError if they cannot be had on this machine."""
    require({"java": "default-jre-headless"})
    version = _pinned_version()
    folder = _CACHE / version
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        # Another worker may be at it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / f"hadoop-client-minicluster-{version}.jar").exists():
            _download(folder)
    own = sorted(str(jar) for jar in SPARK_JARS.glob("*.jar") if jar.name.startswith(_NEEDED_OF_PYSPARK))
    return [*sorted(map(str, folder.glob("*.jar"))), *own]


def yarn_classpath_or_skip() -> list[str]:
    """As `yarn_classpath`; where that is impossible the tests are skipped with a warning, or fail if CI is set."""
    try:
        return yarn_classpath()
    except MissingError as error:
        sentence = f"The tests on a real YARN were not run: {error}"
        if os.environ.get("CI"):
            pytest.fail(sentence)
        warnings.warn(pytest.PytestWarning(sentence), stacklevel=2)
        pytest.skip(sentence)


def _pinned_version() -> str:
    """The version of Hadoop in the pom; fails unless it is the one that PySpark brings."""
    found = re.search("<hadoop.version>(.+)</hadoop.version>", _POM.read_text())
    assert found is not None
    (jar,) = SPARK_JARS.glob("hadoop-client-api-*.jar")
    version = jar.stem.removeprefix("hadoop-client-api-")
    if version != found[1]:
        pytest.fail(
            f"PySpark {pyspark.__version__} brings Hadoop {version}, but {_POM} pins {found[1]}:"
            f" set hadoop.version there to {version}."
        )
    return version


def _download(folder: Path) -> None:
    """Let Maven fill the folder; 66 MB."""
    maven = require({"mvn": "maven"})["mvn"]
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [maven, "-B", "-q", "-f", str(_POM), "dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise MissingError(f"{' '.join(command)} failed: {(done.stdout + done.stderr).strip()[:2000]}")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
