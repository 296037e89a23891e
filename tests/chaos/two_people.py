"""Two people and an alert manager on the same nodes: nobody's claim is removed, or changed, without being named.

The people use the real command, in this process; the clock is advanced between the verbs, so that blocks also end.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from subprocess import CompletedProcess
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import httpx

from app.store.database import migrate
from blocklist.cli.limited_client import LimitedClient
from blocklist.client.answers import ApiResponse
from blocklist.model.claims import Role
from tests.integration.command import Command, install
from tests.integration.databases import SqliteFiles
from tests.integration.process import url_of
from tests.integration.secured import SecuredInProcess, secured_in_process

PEOPLE: Final = ("anna", "bob")
ALERTS: Final = "alertmanager/"
NODES: Final = ("w1", "w2", "w3")
_OTHERS: Final = 9
"""Nodes that are never blocked: at most half of all may be."""
_FINGERPRINTS: Final = ("00000000000000a1", "00000000000000b2")
_DURATIONS: Final = ("90s", "10m", "1h", "5h", "forever")
_INTERRUPTED: Final = 0.2
"""How often somebody else changes a node while a command runs."""
_MAX_IDLE: Final = 1200
"""Seconds of the service's time between two verbs."""

ClaimKey = tuple[str, str]
Claims = Mapping[ClaimKey, Mapping[str, Any]]
"""By node and owner."""


class Verb(NamedTuple):
    """What somebody does: `arguments` of the command, or an alert."""

    actor: str
    arguments: Sequence[str]

    @property
    def may_free_others(self) -> bool:
        return {"--all-owners", "--yes"} <= {*self.arguments} and "--dry-run" not in self.arguments


class TwoPeople:
    """Does random verbs and checks each; `seed` determines them. `figures` counts what has happened."""

    def __init__(self, secured: SecuredInProcess, binaries: Path, seed: str) -> None:
        tokens = {name: secured.make_token(Role.OPERATOR, name)["token"] for name in (*PEOPLE, "alerts")}
        self._secured = secured
        self._tokens = tokens
        self._before: dict[ClaimKey, Mapping[str, Any]] = {}
        self._random = Random(seed)
        self._people = {name: Command(binaries, secured.url, token=tokens[name]) for name in PEOPLE}
        # Without connections, which time closes.
        self._alerts = secured.service.client(Authorization=f"Bearer {tokens['alerts']}")
        self._reader = secured.service.client(Authorization=f"Bearer {secured.admin}")
        self.figures: Counter[str] = Counter()

    def run(self, seconds: float, on_progress: Callable[[str], None] = lambda line: None) -> list[str]:
        """Act for so long, or until a violation; return all violations."""
        begin = progress = time.monotonic()
        while (now := time.monotonic()) < begin + seconds:
            if now >= progress:
                on_progress(f"{now - begin:.0f} s: {sum(self.figures.values())} events")
                progress = now + 60
            if found := list(self.step()):
                return found
        return []

    def step(self) -> Iterator[str]:
        """One verb, and what was wrong with it."""
        self._secured.clock.advance(self._random.randrange(_MAX_IDLE) if self._random.random() < 0.3 else 0)
        verb = self._verb()
        before = self._before = self._claims()
        said = self._alert() if verb.actor == ALERTS else self._command(verb)
        after, now = self._claims(), self._secured.clock.now
        self.figures[" ".join([verb.actor, *verb.arguments[:1]])] += 1
        for (node, owner), claim in before.items():
            if after.get((node, owner)) == claim or int(claim["endTimestamp"]) <= now:
                continue
            if owner == verb.actor or (verb.actor == ALERTS and owner.startswith(ALERTS)):
                self.figures["own claims changed"] += 1
                if "--dry-run" in verb.arguments:
                    yield f"{verb}: a dry run changed the claim of {owner} on {node}"
            elif not verb.may_free_others or (node, owner) in after:
                yield f"{verb}: changed {claim} to {after.get((node, owner))}; it said {said!r}"
            elif owner not in said or claim["cause"] not in said:
                yield f"{verb}: removed {claim} without a word: {said!r}"
            else:
                self.figures["claims of others removed, named"] += 1

    def _claims(self) -> dict[ClaimKey, Mapping[str, Any]]:
        found = self._reader.get("/claims", params={"limit": 1000}).raise_for_status().json()
        return {(it["node"], it["owner"]): it for it in found["claims"]}

    def _verb(self) -> Verb:
        choose = self._random.choice
        actor = choose((*PEOPLE, *PEOPLE, ALERTS))
        if actor == ALERTS:
            return Verb(actor, ())
        nodes = choose((self._random.sample(NODES, 1), self._random.sample(NODES, 2), ["-l", "pool=a"]))
        kind = choose(("block", "block", "unblock", "unblock", "extend", "drain"))
        # Several nodes are more than a tenth of all: without an answer, that is refused.
        return Verb(
            actor, [kind, *nodes, *self._options(kind), *choose(([], ["--yes"])), *choose(([], ["-o", "json"]))]
        )

    def _options(self, kind: str) -> list[str]:
        choose = self._random.choice
        duration, dry = ["-d", choose(_DURATIONS)], choose(([], [], [], ["--dry-run"]))
        match kind:
            case "block":
                how = choose(([], ["--merge"], ["--replace"]))
                reason = ["-r", f"Reason {self._random.randrange(9)}"]
                return [*reason, *duration, *choose(([], ["--evacuate"])), *how, *dry]
            case "unblock":
                return [*choose(([], ["--all-owners"], ["--wait", "1s"])), *dry]
            case "extend":
                return [*duration, *choose(([], ["--replace"])), *dry]
            case _:
                return ["--timeout", "10ms", *duration, *dry]

    def _command(self, verb: Verb) -> str:
        request = LimitedClient._request

        def interrupted(client: LimitedClient, method: str, *arguments: Any, **options: Any) -> ApiResponse:
            if method != "GET" and self._random.random() < _INTERRUPTED:
                self._block_meanwhile(verb.actor)
            return request(client, method, *arguments, **options)

        with patch.object(LimitedClient, "_request", interrupted):
            done = self._people[verb.actor].run(*verb.arguments)
        self.figures[f"exit code {done.returncode}"] += 1
        if "json" in verb.arguments:
            self._check_document(verb, done)
        return done.stdout + done.stderr

    def _block_meanwhile(self, actor: str) -> None:
        """The other person blocks a node while a command runs: between what it has read and what it changes."""
        (other,) = {*PEOPLE} - {actor}
        node = self._random.choice(NODES)
        body = {"action": "MARK_BLOCKED", "cause": f"Meanwhile {self._random.randrange(9)}", "allowMerge": True}
        client = self._secured.service.client(Authorization=f"Bearer {self._tokens[other]}")
        if client.put(f"/blocklist/nodes/{node}", json=body).is_success:
            self.figures["blocked meanwhile"] += 1
            self._before[node, other] = self._claims()[node, other]

    def _check_document(self, verb: Verb, done: CompletedProcess[str]) -> None:
        document = json.loads(done.stdout) if done.stdout else None
        # An empty selection ends the command before anything is asked.
        assert document is None or document["ok"] == (done.returncode == 0), (verb, done)
        assert done.returncode in {0, 1}, (verb, done)

    def _alert(self) -> str:
        node, fingerprint = self._random.choice(NODES), self._random.choice(_FINGERPRINTS)
        firing = self._random.random() < 0.6
        alert = {
            "status": "firing" if firing else "resolved",
            "labels": {"alertname": "Flapping", "node": node, "blocklist": "mark"},
            "annotations": {"summary": "Link is down"},
            "startsAt": f"2026-11-21T{self._random.randrange(24):02}:00:00Z",
            "fingerprint": fingerprint,
        }
        answer = self._alerts.post("/integrations/alertmanager", json={"alerts": [alert]})
        assert answer.status_code in {200, httpx.codes.CONFLICT}, answer.text
        return ""


@contextmanager
def two_people(folder: Path, seed: str) -> Iterator[TwoPeople]:
    """With a service of their own, on SQLite."""
    nodes_file, database = folder / "nodes.csv", folder / "migrated.db"
    rows = [f"{node},pool=a" for node in NODES] + [f"x{number},pool=b" for number in range(_OTHERS)]
    nodes_file.write_text("\n".join(["id,labels", *rows, ""]))
    migrate(url_of(database))
    with secured_in_process(folder, SqliteFiles(database), nodes_file=str(nodes_file)) as secured:
        yield TwoPeople(secured, install(folder), seed)
