"""Compiles the job of the tests with the Janino that PySpark ships: a Java is enough, a JDK is not needed."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path
from typing import Final

import pyspark

SOURCE: Final = Path(__file__).parent / "CountJob.java"
_COMPILER: Final = "org.codehaus.commons.compiler.samples.CompilerDemo"


def compile_job(java: Path, lib: Path, folder: Path) -> Path:
    """The jar of CountJob in `folder`, compiled against the Flink in `lib`."""
    classes = folder / "classes"
    classes.mkdir(parents=True)
    jars = Path(pyspark.__file__).parent / "jars"
    compiler = os.pathsep.join(str(jar) for name in ("janino", "commons-compiler") for jar in jars.glob(f"{name}*.jar"))
    flink = os.pathsep.join(map(str, sorted(lib.glob("flink-*.jar"))))
    arguments = ["-d", str(classes), "-classpath", flink, str(SOURCE)]
    command = [str(java), "-XX:TieredStopAtLevel=1", "-cp", compiler, _COMPILER, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"Janino failed:\n{done.stdout}{done.stderr}")
    jar = folder / "count-job.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for file in sorted(classes.rglob("*.class")):
            archive.write(file, file.relative_to(classes))
    return jar
