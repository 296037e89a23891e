"""Compiles the applications of the tests: with javac, and with Scala's compiler, which every Spark ships."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from demo.java_home import java_home
from tests.class_archive import installation_digest

SOURCES: Final = Path(__file__).parent / "sources"


def compile_applications(spark_home: Path) -> Path:
    """Return a jar with the Java and Scala sources for this Spark: made once for each state of them."""
    java_sources = sorted(SOURCES.glob("*.java"))
    sources = [*java_sources, SOURCES / "Rounds.scala"]
    digest = hashlib.sha256(installation_digest(spark_home).encode())
    digest.update(b"".join(file.read_bytes() for file in sources))
    jar = Path(sys.prefix) / f"spark-applications-{digest.hexdigest()[:12]}.jar"
    with jar.with_suffix(".lock").open("w") as lock, tempfile.TemporaryDirectory() as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Another worker may be making it, too.
        if not jar.exists():
            _run(
                "javac",
                "--release",
                "8",
                "-nowarn",
                "-cp",
                f"{spark_home}/jars/*",
                "-d",
                folder,
                *java_sources,
            )
            java = [
                java_home() / "bin" / "java",
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                "-cp",
                f"{spark_home}/jars/*",
            ]
            _run(*java, "scala.tools.nsc.Main", "-usejavacp", "-d", folder, SOURCES / "Rounds.scala")
            _archive(Path(folder), jar)
    return jar


def _archive(classes: Path, jar: Path) -> None:
    unfinished = jar.with_suffix(".new")
    with zipfile.ZipFile(unfinished, "w") as archive:
        for file in sorted(classes.rglob("*.class")):
            archive.write(file, file.relative_to(classes))
    unfinished.replace(jar)


def _run(*command: object) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
