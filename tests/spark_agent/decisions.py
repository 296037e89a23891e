"""The Java classes that decide, in a JVM of their own that has no Spark: they are compiled without Spark's classes."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import pyspark

from tests.spark_agent.model import Host, Requirements

SOURCES: Final = Path(__file__).parents[2] / "spark-agent/src/main/java/blocklist/spark"
DECIDING: Final = (
    "EvacuationLimit",
    "HostBlock",
    "HostMatcher",
    "HostNames",
    "InvalidTableException",
    "LiveHost",
    "Plan",
    "Refusals",
    "Requirements",
    "Table",
    "TableEntry",
    "TableReader",
)
_SERVER: Final = Path(__file__).parent / "java/DecisionServer.java"
_JARS: Final = Path(pyspark.__file__).parent / "jars"


def compile_decisions(folder: Path) -> None:
    """Compile with the Janino that Spark ships, as the jar is; nothing but Java's own classes can be used."""
    sources = [*(SOURCES / f"{name}.java" for name in DECIDING), _SERVER]
    compiler = ["java", "-cp", f"{_JARS}/*", "org.codehaus.commons.compiler.samples.CompilerDemo"]
    command = [*compiler, "-d", str(folder), "-classpath", str(folder), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]


@dataclass(kw_only=True)
class JavaPlan:
    """A Plan as the JVM reports it. `matched` maps hosts to id, end, whether it evacuates, and cause."""

    matched: dict[str, tuple[str, int, bool, str]]
    covered: list[str]
    held: set[str]
    evacuated: set[str]
    refused: dict[str, str]
    valid_until: int
    lookups: int
    milliseconds: float = field(compare=False)

    @classmethod
    def parse(cls, reply: str) -> JavaPlan:
        lines: dict[str, list[list[str]]] = {}
        for line in reply.split("\n")[:-1]:
            word, *fields = line.split("\t")
            lines.setdefault(word, []).append(fields)

        def hosts(word: str) -> list[str]:
            return [fields[0] for fields in lines.get(word, ())]

        return cls(
            matched={
                host: (id_, int(end), evacuate == "true", cause)
                for host, id_, end, evacuate, cause in lines.get("matched", ())
            },
            covered=hosts("covered"),
            held=set(hosts("held")),
            evacuated=set(hosts("evacuated")),
            refused={fields[0]: fields[1] for fields in lines.get("refused", ())},
            valid_until=int(hosts("valid")[0]),
            lookups=int(hosts("lookups")[0]),
            milliseconds=int(hosts("nanos")[0]) / 1e6,
        )


class Decisions:
    """Calls the classes in their JVM, whose heap has `heap_megabytes`."""

    def __init__(self, classes: Path, heap_megabytes: int = 64) -> None:
        command = ["java", f"-Xmx{heap_megabytes}m", "-XX:+UseSerialGC", "-cp", str(classes)]
        self._process = subprocess.Popen(
            [*command, "blocklist.spark.DecisionServer"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def read_table(self, text: str | bytes) -> str | None:
        """Put a table in force; the reason if it is refused, and the table before stays."""
        reply = self._ask(b"table\n", text if isinstance(text, bytes) else text.encode())
        word, _, rest = reply.partition("\t")
        return None if word == "ok" else rest

    def plan(self, hosts: Iterable[Host], needs: Requirements, now: int) -> JavaPlan:
        lines = [_fields(needs.keep_hosts, needs.min_nodes, needs.barrier_slots, needs.continuous, now)]
        lines += [_host_line(host) for host in hosts]
        return JavaPlan.parse(self._ask(b"plan\n", "\n".join(lines).encode()))

    def keys(self, names: Sequence[str]) -> list[list[str]]:
        reply = self._ask(b"keys\n", "\n".join(names).encode())
        return [line.split("\t") for line in reply.split("\n")[:-1]]

    def limit(self, script: Iterable[str]) -> list[bool]:
        return [line == "true" for line in self._ask(b"limit\n", "\n".join(script).encode()).splitlines()]

    def _ask(self, command: bytes, body: bytes) -> str:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(struct.pack(">Q", len(command) + len(body)))
        stdin.write(command)
        stdin.write(body)
        stdin.flush()
        head = stdout.read(4)
        assert len(head) == 4, "The JVM has ended."
        return stdout.read(struct.unpack(">I", head)[0]).decode()


def _host_line(host: Host) -> str:
    names = "?" if host.names is None else " ".join(sorted(host.names))
    flags = (host.required, host.slots, host.runs_barrier_tasks, host.reached_evacuation_limit)
    return _fields(host.name, host.open, names, host.joined, *flags)


def _fields(*values: object) -> str:
    return "\t".join(str(int(value)) if isinstance(value, bool) else str(value) for value in values)


def table_text(revision: int, lines: Iterable[str]) -> str:
    """A table with these lines."""
    rows = list(lines)
    return "\n".join((f"blocklist-table 1 {revision} {len(rows)}", *rows, ""))


def render(keys: Mapping[str, tuple[int, str, str, str]]) -> str:
    """A table of keys in this order, each with its end, action, id and cause."""
    return table_text(
        1, (f"{key}\t{end}\t{action}\t{node}\t{cause}" for key, (end, action, node, cause) in keys.items())
    )
