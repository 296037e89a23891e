"""Compiles the applications of the tests with what every Spark ships: Janino for Java, and Scala's compiler.

A Java to run them is enough; a JDK is not needed.
"""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path
from typing import Final

from demo.java_home import java_home

SOURCES: Final = Path(__file__).parent / "sources"
_JANINO: Final = "org.codehaus.commons.compiler.samples.CompilerDemo"
_SCALA: Final = "scala.tools.nsc.Main"


def compile_applications(spark_home: Path, folder: Path) -> Path:
    """Return a jar in `folder` with the Java and the Scala application, for this Spark."""
    classes = _made(folder)
    _compile_java(spark_home, classes)
    _run(spark_home, _SCALA, "-usejavacp", "-d", classes, SOURCES / "Rounds.scala")
    return _archive(classes, folder)


def compile_java(spark_home: Path, folder: Path) -> Path:
    """Return a jar in `folder` with the Java application alone: the compiler of Scala is slow."""
    classes = _made(folder)
    _compile_java(spark_home, classes)
    return _archive(classes, folder)


def _made(folder: Path) -> Path:
    classes = folder / "classes"
    classes.mkdir(parents=True)
    return classes


def _compile_java(spark_home: Path, classes: Path) -> None:
    # Janino needs all of Spark's jars: it reads the signatures of a whole class before it picks a method.
    path = os.pathsep.join(str(jar) for jar in sorted((spark_home / "jars").glob("*.jar")))
    _run(spark_home, _JANINO, "-d", classes, "-classpath", path, SOURCES / "Rounds.java")


def _archive(classes: Path, folder: Path) -> Path:
    jar = folder / "applications.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for file in sorted(classes.rglob("*.class")):
            archive.write(file, file.relative_to(classes))
    return jar


def _run(spark_home: Path, main: str, *arguments: object) -> None:
    java = java_home() / "bin" / "java"
    command = [java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{spark_home}/jars/*", main, *arguments]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{main} failed:\n{done.stdout}{done.stderr}")
