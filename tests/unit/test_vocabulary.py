"""One term for one thing: the terms that were replaced, and what replaces them.

The terms in use are in docs/glossary.md. A word that is retired here may still be right in a sentence; as a name in the
code it is not.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("app", "blocklist")
CODE: Final = (*PACKAGES, "benchmarks", "demo", "tests", "website")

MODULES: Final = {
    "answer": "blocklist/client/response.py",
    "answers": "app/api/responses.py",
    "asked": "app/page/forms.py",
    "asks": "blocklist/client/reads.py",
    "bell": "app/engine/broadcast.py",
    "chance": "blocklist/detection/heuristics.py",
    "change_lines": "app/logs/change_log.py",
    "changing": "app/page/block_routes.py",
    "fast_path": "app/http/fast_get.py",
    "feed": "app/watch/change_feed.py, blocklist/client/watch_thread.py",
    "findings": "spark-agent/src/main/java/blocklist/spark/EvidenceCollector.java",
    "follower": "app/listeners/reader.py",
    "gate": "app/push/resource_manager_barrier.py",
    "growing": "blocklist/detection/streaming_source.py",
    "guard": "app/engine/limits.py, blocklist/model/limits.py",
    "health_tracker": "spark-agent/src/main/java/blocklist/spark/BlocklistTracker.java",
    "identity": "app/api/authentication.py",
    "issuer_keys": "app/auth/jwks.py",
    "keeper": "app/listeners/writer.py",
    "members": "app/listeners/entry.py",
    "membership": "blocklist/client/listener_session.py",
    "memory": "app/publisher.py",
    "moments": "blocklist/model/time.py",
    "nouns": "blocklist/cli/columns.py",
    "open_files": "app/http/process.py",
    "orders": "blocklist/client/writes.py",
    "origins": "app/engine/list_details.py",
    "patience": "app/http/connection_limits.py",
    "people": "app/page/listener_routes.py",
    "presence": "app/store/circuit_breaker.py",
    "proof": "app/api/node_status.py",
    "ready": "app/http/process.py",
    "rehearsal": "blocklist/cli/messages.py",
    "roll": "app/listeners/directory.py",
    "sender": "app/push/webhook_client.py",
    "sent": "app/page/forms.py",
    "serving": "blocklist/cli/service_commands.py, blocklist/detection/failures.py",
    "spells": "app/page/block_intervals.py",
    "steering": "spark-agent/src/main/java/blocklist/spark/HostExclusions.java",
    "telling": "app/listeners/report_codec.py",
    "tracked": "app/http/request_tracking.py",
    "trouble": "app/store/error_translation.py",
    "upkeep": "app/engine/background.py",
    "usable": "blocklist/model/usable_nodes.py",
    "wish": "blocklist/cli/block_request.py",
    "words": "app/page/time_format.py",
}
"""Module to the one that has its content."""

NAMES: Final = {
    "AllowedHosts": "CallbackPolicy",
    "Applied": "ListenerProgress",
    "Asks": "Requester",
    "Below": "Shortfall",
    "Bell": "Broadcast",
    "ChangeLines": "ChangeLogWriter",
    "EvidenceBlocks": "EvidenceBlocker",
    "Findings": "EvidenceCollector",
    "Follower": "ListenerReader",
    "Guard": "LimitGuard",
    "HealthTracker": "BlocklistTracker",
    "JsonAnswer": "JsonResponse",
    "Keeper": "ListenerWriter",
    "Known": "ParseCache",
    "LISTENS": "REQUIRE_LISTENER",
    "Line": "AbortableSocket",
    "Loaded": "LoadedState",
    "Look": "OnRemoteChange",
    "ManagersFirst": "ResourceManagerBarrier",
    "Member": "ListenerEntry",
    "Membership": "ListenerSession",
    "Memory": "ChangePublisher",
    "Needs": "RequireRole",
    "News": "LogTail",
    "Noun": "ResourceView",
    "Origin": "LastChange",
    "Origins": "LastChanges",
    "Past": "PastList",
    "Patience": "ConnectionLimits",
    "PatientProtocol": "LimitingProtocol",
    "Place": "ClientSlots",
    "Presence": "CircuitBreaker",
    "Present": "LimitContext",
    "READS": "REQUIRE_READER",
    "ReadyAnswers": "CachedResponses",
    "Rehearsal": "DryRunResult",
    "Rendering": "CachedList",
    "Roll": "ListenerDirectory",
    "Seen": "Observation",
    "Sender": "WebhookClient",
    "Settled": "ReconcileResult",
    "Sort": "Observation",
    "Spell": "BlockInterval",
    "Steering": "HostExclusions",
    "TrackedApp": "RequestTrackingApp",
    "Using": "ListenerNodes",
    "Waits": "StreamQuota",
    "Wanted": "ChangeFilter, DesiredState",
    "Wish": "BlockForm, BlockSpec",
    "Worker": "WriterThread",
    "as_it_is": "noop_block",
    "expire_ended": "expire_blocks",
    "find_again": "probe_database",
    "forcing": "author_with_force",
    "identify": "authenticate",
    "issuer_keys": "jwks",
    "met_by": "satisfied_by",
    "place_of": "slots_of",
    "raise_open_files": "raise_nofile_limit",
    "rehearse": "dry_run_response",
    "steadily": "supervise",
    "tell_ready": "sd_notify_ready",
    "told_of": "record_push_error",
    "until_disconnect": "run_until_disconnect",
}
"""Class, function or constant to its standard term."""

WORDS: Final = {
    "bell": "broadcast",
    "came": "registered, received",
    "come": "register, arrive",
    "hear": "receive",
    "heard": "received",
    "keeper": "listener writer",
    "membership": "listener session",
    "moments": "times",
    "news": "updates",
    "nouns": "resource views",
    "origins": "last changes",
    "patience": "connection limits",
    "presence": "circuit breaker",
    "rehearsal": "dry run",
    "rehearse": "dry_run",
    "rehearsed": "dry run",
    "roll": "listener directory",
    "spell": "block interval",
    "spells": "block intervals",
    "steering": "reconciler",
    "tell": "notify",
    "told": "notified",
    "trouble": "error",
    "untold": "unsynced",
    "upkeep": "background tasks",
    "wish": "block request",
}
"""Words that are no part of any name in the packages."""

PHRASES: Final = {
    "all the same": "anyway",
    "anew": "again",
    "are told": "are notified, receive",
    "begins anew": "restarts",
    "come second": "conflict with another commit",
    "comes second": "conflicts with another commit",
    "is told": "is notified, receives",
    "passed over": "ignored, skipped",
    "so long": "timeout, interval, deadline; while",
    "so many": "the maximum number of, up to",
    "so often": "at this interval",
    "who is told": "listeners that are notified",
}
"""Phrases that do not come back into documentation, messages and comments."""


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from (path for path in (ROOT / folder).rglob("*.py") if path != Path(__file__).resolve())


@cache
def names_in(path: Path) -> Mapping[str, int]:
    """The names in a module, each with its first line."""
    found: dict[str, int] = {}
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.NAME:
            found.setdefault(token.string, token.start[0])
    return found


def words_of(name: str) -> set[str]:
    """The words of a name: `_ListenerWriter` has `listener` and `writer`."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def texts() -> Iterator[Path]:
    """What people read: documentation, and the code with its messages and comments."""
    yield from ROOT.glob("*.md")
    for folder, kinds in {"docs": ("*.md", "*.yml"), "deploy": ("*.conf",), "app": ("*.py", "*.j2")}.items():
        for kind in kinds:
            yield from (ROOT / folder).rglob(kind)
    yield from sources("blocklist")


def _place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_a_class_name_has_one_meaning() -> None:
    places = defaultdict(list)
    for path in sources(*PACKAGES):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(_place(path, node.lineno))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_module_has_a_retired_name() -> None:
    found = [
        f"{path.relative_to(ROOT)}: see {MODULES[path.stem]}" for path in sources(*PACKAGES) if path.stem in MODULES
    ]
    assert not found, "\n".join(found)


def test_each_replacement_exists() -> None:
    assert [path for paths in MODULES.values() for path in paths.split(", ") if not (ROOT / path).is_file()] == []
    names = {name for package in PACKAGES for path in sources(package) for name in names_in(path)}
    modules = {path.stem for package in PACKAGES for path in sources(package)}
    modules |= {path.stem for path in (ROOT / "spark-agent").rglob("*.java")}
    assert {name for line in NAMES.values() for name in line.split(", ")} - names - modules == set()


@pytest.mark.parametrize("folder", CODE)
def test_no_retired_name_is_in_the_code(folder: str) -> None:
    words = WORDS if folder in PACKAGES else {}
    found = []
    for path in sources(folder):
        for name, line in names_in(path).items():
            if name in NAMES:
                found.append(f"{_place(path, line)}: {name} is now {NAMES[name]}")
            found += [f"{_place(path, line)}: {name}: write {words[word]!r}" for word in words_of(name) & words.keys()]
    assert not found, "\n".join(found)


def test_no_retired_phrase_is_in_documentation_or_code() -> None:
    found = []
    for path in texts():
        text = path.read_text(encoding="utf-8")
        for match in _PHRASES.finditer(text):
            phrase = " ".join(match[0].lower().split())
            found.append(
                f"{_place(path, text.count(chr(10), 0, match.start()) + 1)}: {phrase!r}: write {PHRASES[phrase]!r}"
            )
    assert not found, "\n".join(found)


_PHRASES: Final = re.compile(
    r"\b(?:" + "|".join(re.escape(phrase).replace(r"\ ", r"\s+(?:\#\s+)?") for phrase in PHRASES) + r")\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("package", PACKAGES)
def test_import_linter_names_each_package(package: str) -> None:
    """The layers of a package name all that is right below it; `exhaustive` makes import-linter check that, too."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = [own for own in config["tool"]["importlinter"]["contracts"] if own.get("containers") == [package]]
    assert contract["exhaustive"] is True
    named = {name.strip() for layer in contract["layers"] for name in re.split(r"[|:]", layer)}
    children = {
        path.stem for path in (ROOT / package).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert named == children - {"__init__"}
