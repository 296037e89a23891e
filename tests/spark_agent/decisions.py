"""The Java classes that decide, in a JVM of their own that has no Spark: they do without it."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from blocklist.spark.jar import jar_path
from tests.spark_agent.model import Host, Requirements
from tests.spark_versions import tested_spark

Tree = str | list["Tree"] | dict[str, "Tree"]
"""JSON values whose leaves are texts."""
_SERVER: Final = Path(__file__).parent / "java/DecisionServer.java"
_PROGRAMS: Final = [
    Path(__file__).parent / "java" / f"{name}.java"
    for name in ("ReportProgram", "FactProgram", "GivenNames", "GivenPods", "LocalityFacts", "SchedulerProgram")
]
_JARS: Final = tested_spark() / "jars"


def compile_decisions(folder: Path) -> str:
    """Compile the server of the decisions; return its class path, which has nothing but the jar."""
    _compile(folder, str(jar_path()), [_SERVER])
    return f"{folder}:{jar_path()}"


def compile_programs(folder: Path) -> str:
    """Compile the programs that use the jar; return their class path, which has Spark's classes, too."""
    path = f"{jar_path()}:{_JARS}/*"
    _compile(folder, path, _PROGRAMS)
    return f"{folder}:{path}"


def facts_of(command: Sequence[str]) -> dict[str, str]:
    """What a program found out: `true` for each fact that holds, else what is wrong."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    rows = [line.split("\t") for line in done.stdout.splitlines() if line.startswith("FACT\t")]
    assert rows, done.stderr[-4000:]
    return {name: result for _, name, result in rows}


def _compile(folder: Path, class_path: str, sources: Iterable[Path]) -> None:
    command = ["javac", "--release", "8", "-proc:none", "-Xlint:none", "-d", str(folder), "-cp", class_path]
    done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]


@dataclass(kw_only=True)
class JavaPlan:
    """A Plan as the JVM reports it. `matched` maps hosts to id, end, whether it evacuates, and cause."""

    matched: dict[str, tuple[str, int, bool, str]]
    covered: list[str]
    canaries: dict[str, set[str]]
    closed_executors: set[str]
    provisional: set[str]
    announced: set[str]
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
            canaries={host: set(ids.split()) for host, ids in lines.get("canary", ())},
            closed_executors=set(hosts("closed")),
            provisional=set(hosts("provisional")),
            announced=set(hosts("announced")),
            held=set(hosts("held")),
            evacuated=set(hosts("evacuated")),
            refused={fields[0]: fields[1] for fields in lines.get("refused", ())},
            valid_until=int(hosts("valid")[0]),
            lookups=int(hosts("lookups")[0]),
            milliseconds=int(hosts("nanos")[0]) / 1e6,
        )


@dataclass(kw_only=True)
class JavaPlacement:
    """A Placement as the JVM reports it: `names` maps the excluded names to ids."""

    names: dict[str, set[str]]
    refused: dict[str, str]
    valid_until: int

    @classmethod
    def parse(cls, reply: str) -> JavaPlacement:
        lines = [line.split("\t") for line in reply.splitlines()]
        return cls(
            names={fields[1]: set(fields[2:]) for fields in lines if fields[0] == "name"},
            refused={fields[1]: fields[2] for fields in lines if fields[0] == "refused"},
            valid_until=int(lines[-1][1]),
        )


class Decisions:
    """Calls the classes in their JVM, whose heap has `heap_megabytes`."""

    def __init__(self, classes: str, heap_megabytes: int = 64) -> None:
        command = ["java", f"-Xmx{heap_megabytes}m", "-XX:+UseSerialGC", "-cp", classes]
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

    def placement(
        self, nodes: Iterable[tuple[str, Iterable[str], bool]], giving_way: int, max_names: int, now: int
    ) -> JavaPlacement:
        """`nodes` are a name, further names and addresses, and whether it stays open although it is blocked."""
        lines = [_fields(giving_way, max_names, now)]
        lines += [_fields(name, " ".join(sorted(names)), left_open) for name, names, left_open in nodes]
        return JavaPlacement.parse(self._ask(b"placement\n", "\n".join(lines).encode()))

    def guard(self, script: Iterable[tuple[bool, bool, int]]) -> list[int]:
        """Of one guard: whether an executor is open, whether a pod waits, and the time in ms, for each call."""
        lines = (f"{int(is_open)} {int(waits)} {now}" for is_open, waits, now in script)
        return [int(line) for line in self._ask(b"guard\n", "\n".join(lines).encode()).splitlines()]

    def exclude(self, pod: Tree, names: Iterable[str]) -> tuple[Tree, set[str] | None, int]:
        """The pod after, the names that it keeps off (None: all), and the number of its terms before."""
        lines = [" ".join(names), *_encode(pod)]
        excluded, terms, *rest = self._ask(b"affinity\n", "\n".join(lines).encode()).split("\n")
        return _decode(iter(rest)), None if excluded == "*" else set(excluded.split()), int(terms)

    def keys(self, names: Sequence[str]) -> list[list[str]]:
        reply = self._ask(b"keys\n", "\n".join(names).encode())
        return [line.split("\t") for line in reply.split("\n")[:-1]]

    def canaries(self, rounds: Iterable[Mapping[str, Mapping[int, int]]]) -> list[dict[str, set[int]]]:
        """The canaries of each node in each round, by its usable executors with their resource profiles."""

        def words(executors: Mapping[int, int]) -> str:
            return ",".join(f"{executor}:{profile}" for executor, profile in executors.items())

        lines = (" ".join(f"{node}={words(executors)}" for node, executors in each.items()) for each in rounds)
        reply = self._ask(b"canaries\n", "\n".join(lines).encode())
        pairs = ((pair.split("=") for pair in line.split()) for line in reply.splitlines())
        return [{node: set(map(int, found.split(","))) for node, found in line} for line in pairs]

    def limit(self, script: Iterable[str]) -> list[bool]:
        return [line == "true" for line in self._ask(b"limit\n", "\n".join(script).encode()).splitlines()]

    def judge(self, script: Iterable[Sequence[object]], *, hosts_serve: bool = False) -> list[dict[str, str]]:
        """The findings of one judge, node to sentence, at each `findings` of the script: word, time and rest."""
        lines = [str(hosts_serve).lower(), *(_fields(*event) for event in script)]
        found: list[dict[str, str]] = [{}]
        for line in self._ask(b"judge\n", "\n".join(lines).encode()).splitlines():
            node, _, reason = line.partition("\t")
            if node == ".":
                found.append({})
            else:
                found[-1][node] = reason
        return found[:-1]

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


def _encode(tree: Tree) -> Iterable[str]:
    if isinstance(tree, str):
        yield f'"{tree}'
    elif isinstance(tree, dict):
        yield "{"
        for name, value in tree.items():
            yield name
            yield from _encode(value)
        yield "}"
    else:
        yield "["
        for value in tree:
            yield from _encode(value)
        yield "]"


def _decode(lines: Iterator[str], first: str | None = None) -> Tree:
    first = next(lines) if first is None else first
    if first == "[":
        return [_decode(lines, line) for line in iter(lines.__next__, "]")]
    if first == "{":
        return {name: _decode(lines) for name in iter(lines.__next__, "}")}
    return first[1:]


def _host_line(host: Host) -> str:
    names = "?" if host.names is None else " ".join(sorted(host.names))
    flags = (host.required, host.slots, host.runs_barrier_tasks, host.reached_evacuation_limit, host.machine, host.busy)
    usable = " ".join(f"{each}:{host.profile(each)}" for each in host.usable)
    executors = (" ".join(host.executors), usable)
    return _fields(host.name, host.open, names, host.joined, *flags, host.unannounced, *executors)


def _fields(*values: object) -> str:
    return "\t".join(str(int(value)) if isinstance(value, bool) else str(value) for value in values)


def table_text(revision: int, lines: Iterable[str]) -> str:
    """A table with these lines."""
    rows = list(lines)
    return "\n".join((f"blocklist-table 1 {revision} {len(rows)}", *rows, ""))


def render_blocks(blocks: Iterable[tuple[str, int, str, str]]) -> str:
    """The table with these blocks (node id, end, action and cause), each under the keys that the service gives it."""
    keys = {}
    for node_id, end, action, cause in blocks:
        normal = node_id.lower()
        label, dot, _ = normal.partition(".")
        further = () if label.isdigit() or ":" in normal else (label,) if dot else (f"{label}.",)
        keys.update(dict.fromkeys((normal, *further), (end, action, node_id, cause)))
    return render(keys)


def render(keys: Mapping[str, tuple[int, str, str, str]]) -> str:
    """A table of keys in this order, each with its end, action, id and cause."""
    lines = (f"{key}\t{end}\t{action}\t{node}\t{cause}" for key, (end, action, node, cause) in keys.items())
    return table_text(1, lines)
