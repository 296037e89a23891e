"""Builds blocklist/spark/blocklist-spark.jar: `python spark-agent/build.py [JAR [SPARK_JARS]]`.

It needs a Java that runs, but no JDK: Spark ships a compiler, Janino, for the code that it generates. The same sources
give the same bytes, whatever the machine, the Java and the version of Spark.
"""

from __future__ import annotations

import os
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
_MANIFEST: Final = "Manifest-Version: 1.0\nAutomatic-Module-Name: blocklist.spark\n\n"
_COMPILER: Final = "org.codehaus.commons.compiler.samples.CompilerDemo"
"""A main class like javac's, which commons-compiler has among its samples."""


def build(target: Path, spark_jars: Path, java: str = "java") -> None:
    """Compile all sources and write the jar. Raises RuntimeError with the compiler's messages."""
    with tempfile.TemporaryDirectory() as folder:
        _compile(Path(folder), spark_jars, java)
        # Written aside: a JVM may have the present jar open.
        aside = target.with_suffix(".new")
        with zipfile.ZipFile(aside, "w") as jar:
            _add(jar, "META-INF/MANIFEST.MF", _MANIFEST.encode())
            for file in sorted(Path(folder).rglob("*.class")):
                _add(jar, file.relative_to(folder).as_posix(), file.read_bytes())
        aside.replace(target)


def _compile(folder: Path, spark_jars: Path, java: str) -> None:
    sources = [str(source) for source in sorted(SOURCES.rglob("*.java"))]
    # All jars of Spark: Janino reads the signatures of a whole class before it chooses a method.
    classpath = os.pathsep.join(str(jar) for jar in sorted(spark_jars.glob("*.jar")))
    command = [java, "-cp", f"{spark_jars}/*", _COMPILER, "-d", str(folder), "-classpath", classpath, *sources]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"The sources in {SOURCES} do not compile:\n{(done.stdout + done.stderr)[-4000:]}")


def _add(jar: zipfile.ZipFile, name: str, data: bytes) -> None:
    """Stored, not compressed: versions of zlib compress differently."""
    jar.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_STORED)


def main(arguments: list[str]) -> int:
    import pyspark  # noqa: PLC0415 - not needed by those who name the jars

    target = Path(arguments[0]) if arguments else JAR
    jars = Path(arguments[1]) if len(arguments) > 1 else Path(pyspark.__file__).parent / "jars"
    build(target, jars)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
