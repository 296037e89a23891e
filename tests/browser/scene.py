"""A realistic state for screenshots: a week of changes, eight listeners, some of them behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx

from app.main import unix_millis
from app.store.database import make_store
from app.store.store import Store
from blocklist.model.changes import Author, Change
from blocklist.model.draft import BlocklistTracker, Draft
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from tests.integration.bodies import EVACUATE, MARK, block, later
from tests.integration.listeners import RM
from tests.integration.process import url_of

HOUR: Final = 3_600_000
_CAUSES: Final = (
    ("Disk errors: sda1", "alertmanager", 9),
    ("Kernel upgrade", "anna", 4),
    ("DiskFull: /data is 97 % full", "alertmanager", 6),
    ("Hot machine", "ben", 12),
    ("NetworkDrops: 3 % of packets", "alertmanager", 3),
    ("2 applications say so: app-1 (Spark excluded the host); app-4 (slow)", "evidence", 1),
)


def write_history(database: Path, now: int) -> None:
    """Write a week of changes before `now` (Unix ms) to a database that no service uses."""
    asyncio.run(_write(make_store(url_of(database), "scene", 2.0, unix_millis), now))


async def _write(store: Store, now: int) -> None:
    snapshot = (await store.open()).snapshot
    changes = _week(BlocklistTracker(snapshot), now)
    for begin in range(0, len(changes), 100):
        await store.commit(changes[begin : begin + 100], after=begin, history=snapshot.history)
    await store.close()


def _week(tracker: BlocklistTracker, now: int) -> list[Change]:
    chance = random.Random(7)
    changes: list[Change] = []
    ends: list[tuple[int, str]] = []
    for at in range(now - 7 * 24 * HOUR, now - HOUR, HOUR // 2):
        for end, node_id in sorted(entry for entry in ends if entry[0] <= at):
            ends.remove((end, node_id))
            changes += _apply(tracker, end, None, node_id)
        busy = 3 if at > now - 3 * 24 * HOUR else 1
        for _ in range(busy if chance.random() < 0.55 else 0):
            node_id = f"worker-{chance.randrange(20, 200):03}"
            if tracker.get(node_id) is None:
                cause, author, hours = chance.choice(_CAUSES)
                end = at + int(hours * HOUR * chance.uniform(0.5, 2))
                action = BlockAction(chance.choice((1, 1, 2)))
                node = BlockedNode(id=node_id, action=action, start=at, end=PERMANENT, cause=cause)
                changes += _apply(tracker, at, (node, author), node_id)
                ends.append((end, node_id))
    for _, node_id in ends:
        changes += _apply(tracker, now - HOUR, None, node_id)
    return changes


def _apply(
    tracker: BlocklistTracker, at: int, blocked: tuple[BlockedNode, str] | None, node_id: str
) -> Sequence[Change]:
    draft = Draft(tracker, at)
    if blocked is None:
        draft.author = Author("anna")
        draft.unblock(node_id)
    else:
        draft.author = Author(blocked[1])
        draft.block(blocked[0], allow_merge=True)
    for change in draft.changes:
        tracker.apply(change)
    return draft.changes


def create_current_state(admin: httpx.Client, names: dict[str, httpx.Client]) -> None:
    """Create the current blocks and listeners. `names` are clients of people and programs, by name."""
    for number in range(1, 9):
        role = {"role": RM} if number == 1 else {"role": "JOB_MASTER"}
        name = "yarn-prod" if number == 1 else f"spark-20261121-{number:04}"
        body = {**role, "sessionId": "s1", "leaseSeconds": 600, "minNodes": 2 if number == 3 else 0}
        admin.put(f"/listeners/{name}", json=body).raise_for_status()
    people = iter((
        ("ben", "worker-017", EVACUATE, "Hot machine: 94 °C at the inlet", 2.0),
        ("anna", "worker-042", MARK, "Kernel upgrade", 5.5),
        ("anna", "worker-043", MARK, "Kernel upgrade", 5.5),
        ("alertmanager", "worker-108", EVACUATE, "DiskFull: /data is 98 % full", 0.9),
        ("alertmanager", "worker-131", MARK, "NetworkDrops: 4 % of packets", 0.4),
        ("ben", "worker-012.rack-7.example.net", MARK, "Disk errors: sda1", None),
    ))  # fmt: skip
    for who, node, action, cause, hours in people:
        ends = {} if hours is None else {"endTimestamp": later(hours * 3600)}
        names[who].put(f"/blocklist/nodes/{node}", json=block(action=action, cause=cause, **ends)).raise_for_status()
    power = block(action=EVACUATE, cause="OPS-412: power feed B lost", endTimestamp=later(4 * 3600))
    names["anna"].put("/blocklist/nodes", json={f"worker-{n:03}": power for n in range(84, 90)}).raise_for_status()
    merged = block(action=MARK, cause="Disk errors: sdb2", allowMerge=True, endTimestamp=later(30_000))
    names["anna"].put("/blocklist/nodes/worker-017", json=merged).raise_for_status()
    _report(admin)


def _report(admin: httpx.Client) -> None:
    revision = admin.get("/blocklist/changes?limit=1").json()["revision"]
    for number in range(1, 9):
        name = "yarn-prod" if number == 1 else f"spark-20261121-{number:04}"
        body: dict[str, object] = {"sessionId": "s1", "ackedRevision": revision - (2 if number == 5 else 0)}
        if number in {3, 4, 5}:
            there = {f"{name}:{place}": node for place, node in enumerate(("worker-017", "worker-042", "worker-200"))}
            if number == 4:
                there |= {f"{name}:{place}": f"worker-{147 + place}" for place in range(3, 6)}
            counted = list(there)[:-1] if number == 4 else there
            body |= {"taskManagers": there, "runningTasks": dict.fromkeys(counted, 4)}
        if number == 1:
            ids = ["worker-012.rack-7.example.net", *(f"worker-{place:03}" for place in range(1, 201) if place != 12)]
            body["nodes"] = [{"id": node, "labels": {"rack": f"r{int(node[7:10]) // 12:02}"}} for node in ids]
        if number == 4:
            body["evidence"] = {"worker-077": {"kind": "slow", "reason": "14 of 60 tasks were speculated."}}
        admin.post(f"/listeners/{name}/heartbeat", json=body).raise_for_status()
