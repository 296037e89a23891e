"""The jar of the Spark agent is built from its sources, and is in the package."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

from demo.cluster import spark_home
from demo.java_home import java_home

ROOT = Path(__file__).resolve().parents[2]
JAR = ROOT / "blocklist" / "spark" / "blocklist-spark.jar"
JAVA_8 = 52
"""The version of class files that Java 8 reads."""


def test_the_jar_is_built_from_its_sources(tmp_path: Path) -> None:
    """Byte for byte; `make jar` writes it."""
    built = tmp_path / "built.jar"
    build_module().build(built, spark_home() / "jars", str(java_home() / "bin" / "java"))
    assert built.read_bytes() == JAR.read_bytes(), "run make jar"


def test_java_8_can_load_every_class() -> None:
    with zipfile.ZipFile(JAR) as jar:
        classes = {name: jar.read(name) for name in jar.namelist() if name.endswith(".class")}
    assert "blocklist/spark/BlocklistListener.class" in classes
    assert {name for name, data in classes.items() if int.from_bytes(data[6:8], "big") > JAVA_8} == set()


def build_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("spark_agent_build", ROOT / "spark-agent" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
