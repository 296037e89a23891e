"""ListenerDirectory: everything that is kept of a listener is counted."""

from __future__ import annotations

import asyncio

from app.engine.list_view import ListView
from app.listeners.directory import ListenerDirectory
from app.listeners.entry import ListenerEntry
from app.listeners.quota import ListenerQuota
from app.store.listeners import Secret
from blocklist.model.changes import Snapshot
from blocklist.model.confirmed_nodes import ConfirmedNodes
from blocklist.model.evidence import TTL_MS, EvidenceRule, EvidenceStore, Finding, FindingKind
from blocklist.model.listener import Listener, ListenerRole
from blocklist.model.report import Report
from blocklist.model.tracker import BlocklistTracker

SLOW = Finding(kind=FindingKind.SLOW, reason="Slow.")


def test_evidence_is_kept_only_where_it_is_counted_and_expires() -> None:
    """A copy of it in the report would stay, uncounted."""

    async def scenario() -> None:
        view = ListView(BlocklistTracker(Snapshot(revision=0, history="0000000a", nodes={})), lambda: 0, lambda: None)
        confirmed = ConfirmedNodes(authenticated=True)
        evidence = EvidenceStore(
            EvidenceRule(), view.task_managers.nodes_of, confirmed.is_confirmed, confirmed.principal_of
        )
        quota = ListenerQuota(max_listeners=1, max_bytes=10_000)
        directory = ListenerDirectory(view, evidence, confirmed, quota, lambda: 0)
        entry = job_master()
        directory.add(entry)
        directory.apply_report(entry, Report(evidence={"a": SLOW}, running_tasks={"tm": 1}), 0)
        assert len(evidence) == 1
        evidence.prune(TTL_MS)
        assert len(evidence) == 0
        assert entry.report == Report(running_tasks={"tm": 1})

    asyncio.run(scenario())


def job_master() -> ListenerEntry:
    listener = Listener(
        id="jm",
        role=ListenerRole.JOB_MASTER,
        session="s1",
        callback_url=None,
        lease=1,
        lease_end=1,
        acked=0,
        principal="some-token",
    )
    return ListenerEntry(listener=listener, secret=Secret(current="whsec_"))
