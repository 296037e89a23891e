"""Builds blocklist/spark/blocklist-spark.jar, unless it is newer than its sources: `make jar`.

It needs a JDK, and the classes of Spark: those of SPARK_HOME, else of PySpark.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCES: Final = ROOT / "spark-agent" / "src" / "main" / "java"
JAR: Final = ROOT / "blocklist" / "spark" / "blocklist-spark.jar"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_COORDINATES: Final = ("blocklist", "blocklist-spark")
"""Group and artifact, as Maven calls them."""
_LEGAL: Final = (ROOT / "LICENSE", ROOT / "NOTICE")
# Java 8 is obsolete for JDK 21, and Spark's jars name further ones that are not there; neither is a fault of ours.
_OPTIONS: Final = ("--release", "8", "-encoding", "UTF-8", "-proc:none", "-Xlint:all,-options,-path", "-Werror")


class MissingError(Exception):
    """What building the jar needs is not here; the sentence says what."""


def build() -> None:
    """Build the jar if it is missing or older than its sources.

    Raises MissingError, and RuntimeError with the compiler's messages.
    """
    if is_current():
        return
    with tempfile.TemporaryDirectory() as folder:
        compile_java(sorted(SOURCES.rglob("*.java")), Path(folder), f"{spark_jars()}/*")
        # Written aside: a JVM may have the present jar open.
        aside = JAR.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as jar:
            for name, data in _metadata().items():
                _add(jar, f"META-INF/{name}", data)
            for file in sorted(Path(folder).rglob("*.class")):
                _add(jar, file.relative_to(folder).as_posix(), file.read_bytes())
        aside.replace(JAR)


def _metadata() -> dict[str, bytes]:
    """The files of META-INF, by name."""
    group, artifact = _COORDINATES
    package = (ROOT / "blocklist" / "__init__.py").read_text(encoding="utf-8")
    version = re.findall(r'^__version__ = "(.+)"$', package, re.MULTILINE)[0]
    manifest = {
        "Manifest-Version": "1.0",
        "Automatic-Module-Name": "blocklist.spark",
        "Implementation-Title": artifact,
        "Implementation-Version": version,
    }
    properties = {"groupId": group, "artifactId": artifact, "version": version}
    return {
        "MANIFEST.MF": "".join(f"{name}: {value}\n" for name, value in manifest.items()).encode() + b"\n",
        f"maven/{group}/{artifact}/pom.properties": "".join(f"{k}={v}\n" for k, v in properties.items()).encode(),
        **{path.name: path.read_bytes() for path in _LEGAL},
    }


def compile_java(sources: list[Path], folder: Path, class_path: str) -> None:
    """Compile into `folder` for Java 8; a warning is an error. Raises MissingError, RuntimeError."""
    javac = find_javac()
    if javac is None:
        raise MissingError(f"There is no {JAR.name}: building it needs a JDK (11 or later) in JAVA_HOME or PATH.")
    command = [javac, *_OPTIONS, "-d", str(folder), "-cp", class_path, *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{sources[0].parent} does not compile:\n{(done.stdout + done.stderr)[-8000:]}")


def is_current() -> bool:
    """Whether the jar is newer than what it is built from."""
    newest = max(file.stat().st_mtime for file in (Path(__file__), *_LEGAL, *SOURCES.rglob("*.java")))
    return JAR.exists() and JAR.stat().st_mtime > newest


def find_javac() -> str | None:
    """The path of the compiler: of JAVA_HOME, else of PATH; None without a JDK."""
    home = os.environ.get("JAVA_HOME")
    return (shutil.which("javac", path=f"{home}/bin") if home else None) or shutil.which("javac")


def spark_jars() -> Path:
    """The folder of Spark's jars. Raises MissingError."""
    home, package = os.environ.get("SPARK_HOME"), importlib.util.find_spec("pyspark")
    if home is None and (package is None or package.origin is None):
        raise MissingError(f"There is no {JAR.name}: building it needs PySpark, or a Spark in SPARK_HOME.")
    return Path(home or str(package and Path(str(package.origin)).parent)) / "jars"


def _add(jar: zipfile.ZipFile, name: str, data: bytes) -> None:
    """With a fixed time: the same classes give the same bytes, and so the same ETag."""
    jar.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)


def _install_jdk() -> None:
    """As root on Debian; elsewhere it says what is missing."""
    from tests.debian import MissingError as NotInstalledError  # noqa: PLC0415 - only a checkout has it
    from tests.debian import require  # noqa: PLC0415

    try:
        require({"javac": "default-jdk-headless"})
    except NotInstalledError as error:
        raise MissingError(f"There is no {JAR.name}: building it needs a JDK (11 or later). {error}") from None


def main(arguments: list[str]) -> int:
    """Return the exit code. With `--if-possible` it is 0, too, if something is missing."""
    try:
        if not is_current() and not find_javac():
            _install_jdk()
        build()
    except MissingError as error:
        sys.stderr.write(f"{error}\n")
        return 0 if "--if-possible" in arguments else 1
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
