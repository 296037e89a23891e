"""Verdicts of detection are claims of the owner `detection`, which a person may remove or dismiss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pytest

from blocklist import BlocklistClient
from blocklist.detection.heuristics import NodeVerdict
from blocklist.detection.node_summary import summarize
from blocklist.detection.proposals import (
    JudgedNodes,
    Proposal,
    Summaries,
    judge_with_history,
    propose,
)
from blocklist.detection.session import apply, find_releases, history_of, remove_claims
from blocklist.detection.slowness import HOUR_MS, Rules, Severity
from blocklist.model.claims import DETECTION_OWNER
from blocklist.model.errors import DismissedError
from blocklist.model.node import BlockAction
from tests.integration.bodies import now_ms
from tests.integration.conftest import StartInProcess
from tests.integration.databases import ON_SQLITE
from tests.integration.in_process import InProcessService, RunningClock
from tests.integration.problems import problem_of
from tests.unit.slow_applications import APPLICATION, application

pytestmark = ON_SQLITE

MARK, EVACUATE = BlockAction
NODE: Final = "n3"


def run_detection(client: BlocklistClient, verdict: NodeVerdict) -> str | None:
    """A run that finds this verdict: why it is not applied, None if it is."""
    proposal = proposed(client, verdict)
    apply(client, [proposal])
    return proposal.skip_reason


def proposed(client: BlocklistClient, verdict: NodeVerdict) -> Proposal:
    return propose(verdict, client.history(NODE), Rules(), now=now_ms())


def owners(client: BlocklistClient) -> list[str]:
    return [claim.owner for claim in client.claims(NODE)]


@pytest.fixture
def fresh(start_in_process: StartInProcess) -> InProcessService:
    """In this process, by the time of day."""
    return start_in_process(clock=RunningClock())


@pytest.fixture
def verdict() -> NodeVerdict:
    seen = now_ms() - 1000
    return NodeVerdict(
        host=NODE,
        severity=Severity.SLOW,
        action=MARK,
        cause="2.1x slower than its peers",
        first_evidence=seen - HOUR_MS,
        last_evidence=seen,
        end=seen + HOUR_MS,
        p_value=0.0,
    )


def newer(verdict: NodeVerdict) -> NodeVerdict:
    """The same, from log lines of now."""
    return replace(verdict, last_evidence=now_ms() + 1, end=verdict.end + HOUR_MS)


def test_a_verdict_is_a_claim_beside_those_of_others(fresh: InProcessService, verdict: NodeVerdict) -> None:
    with BlocklistClient(fresh.url) as client:
        client.block(NODE, "kernel", action=EVACUATE)
        assert run_detection(client, verdict) is None
        assert owners(client) == ["anonymous", DETECTION_OWNER]
        assert run_detection(client, verdict) == "the node is already blocked for this"
        client.remove_claim(NODE, "anonymous")
        node = client.snapshot().nodes[NODE]
        assert (node.action, node.end, node.cause) == (MARK, verdict.end, verdict.cause)


def test_a_node_that_is_only_slow_keeps_an_executor_until_it_fails(
    fresh: InProcessService, verdict: NodeVerdict
) -> None:
    rules = Rules(canary=True)

    def detect(found: NodeVerdict) -> bool:
        apply(client, [propose(found, client.history(NODE), rules, now=now_ms())])
        return client.get(NODE).canary

    with BlocklistClient(fresh.url) as client:
        assert detect(replace(verdict, canary=True))
        assert not detect(replace(newer(verdict), severity=Severity.FAILING))
        assert not detect(replace(newer(newer(verdict)), canary=True)), "it is not weakened"
        assert [change.type.value for change in client.history(NODE)] == ["blocked", "merged", "merged"]


def test_unblocking_the_node_dismisses_what_the_logs_said_until_then(
    fresh: InProcessService, verdict: NodeVerdict
) -> None:
    with BlocklistClient(fresh.url) as client, fresh.client() as http:
        run_detection(client, verdict)
        client.unblock(NODE)
        assert [it["owner"] for it in http.get(f"/blocklist/nodes/{NODE}/claims").json()["dismissed"]] == ["detection"]
        assert run_detection(client, verdict) == "the node was unblocked by hand since then"
        client.block(NODE, "kernel")
        assert run_detection(client, verdict) == "the node was unblocked by hand since then"
        assert run_detection(client, newer(verdict)) is None
        assert owners(client) == ["anonymous", DETECTION_OWNER]


def test_the_service_refuses_what_the_logs_said_before_the_node_was_unblocked(
    fresh: InProcessService, verdict: NodeVerdict
) -> None:
    with BlocklistClient(fresh.url) as client:
        run_detection(client, verdict)
        proposal = proposed(client, newer(verdict))
        before = now_ms()
        client.unblock(NODE)
        with pytest.raises(DismissedError, match=f"detection was dismissed on {NODE.upper()} at 20"):
            client.put_claim(NODE.upper(), DETECTION_OWNER, "slow", last_evidence=before)
        # Unblocked between the proposals and their application.
        outdated = replace(proposal, verdict=replace(proposal.verdict, last_evidence=before))
        (applied,) = apply(client, [outdated])
        assert applied.skip_reason == "the node was unblocked by hand since then"
        client.put_claim("n4", DETECTION_OWNER, "slow", last_evidence=before)
        client.put_claim(NODE, "anna", "slow", last_evidence=before)
        assert owners(client) == ["anna"]
        client.put_claim(NODE, DETECTION_OWNER, "slow", last_evidence=now_ms() + 1)
        assert owners(client) == ["anna", DETECTION_OWNER]


def test_all_or_none_of_several_claims_are_refused(fresh: InProcessService, verdict: NodeVerdict) -> None:
    with BlocklistClient(fresh.url) as client, fresh.client() as http:
        run_detection(client, verdict)
        body = {"action": "MARK_BLOCKED", "cause": "slow", "lastEvidenceTimestamp": str(now_ms())}
        client.unblock(NODE)
        problem = problem_of(http.put("/claims/detection", json={"n4": body, NODE: body}), 409)
        assert problem["type"] == "urn:blocklist:problem:dismissed"
        assert problem_of(http.put(f"/blocklist/nodes/{NODE}/claims/detection?dryRun=true", json=body), 409) != {}
        assert http.get("/blocklist").json() == {}


def test_a_removed_claim_is_not_made_again_from_the_same_logs(fresh: InProcessService, verdict: NodeVerdict) -> None:
    with BlocklistClient(fresh.url) as client:
        client.block(NODE, "kernel")
        run_detection(client, verdict)
        client.remove_claim(NODE, DETECTION_OWNER)
        assert run_detection(client, verdict) == "the node was unblocked by hand since then"
        assert owners(client) == ["anonymous"]
        assert run_detection(client, newer(verdict)) is None


def judged_nodes(client: BlocklistClient, summaries: Summaries) -> JudgedNodes:
    return judge_with_history(summaries, Rules(), lambda _: {}, history_of(client), now=now_ms())


def ran_since(began: int, *slow: Mapping[str, float]) -> Summaries:
    """Applications one after another from then on."""
    evidence = [
        each
        for number, own in enumerate(slow)
        for each in application(number, own, began=began + (number + 1) * APPLICATION)
    ]
    return lambda ignored: summarize(it for it in evidence if it.first >= ignored.get(it.host, 0))


def releases(client: BlocklistClient, summaries: Summaries) -> list[str]:
    judged = judged_nodes(client, summaries)
    found = find_releases(client, judged, summaries, history_of(client), Rules())
    remove_claims(client, found)
    return [it.host for it in found]


def test_a_node_that_has_recovered_is_released_before_its_block_ends(
    fresh: InProcessService, verdict: NodeVerdict
) -> None:
    with BlocklistClient(fresh.url) as client:
        client.block("n4", "kernel")
        assert releases(client, ran_since(now_ms(), {}, {})) == [], "detection has no claim"
        run_detection(client, verdict)
        client.block(NODE, "kernel", allow_merge=True)
        assert releases(client, ran_since(now_ms() - HOUR_MS, {}, {})) == [], "as it was before the claim"
        assert releases(client, ran_since(now_ms(), {}, {NODE: 2.2})) == []
        assert owners(client) == [DETECTION_OWNER, "anonymous"]
        assert releases(client, ran_since(now_ms(), {NODE: 2.2}, {}, {})) == [NODE]
        assert owners(client) == ["anonymous"]
        assert run_detection(client, verdict) == "the node was unblocked by hand since then", "old evidence"
        assert run_detection(client, newer(verdict)) is None


def test_a_claim_that_is_gone_meanwhile_is_no_error(fresh: InProcessService, verdict: NodeVerdict) -> None:
    with BlocklistClient(fresh.url) as client:
        run_detection(client, verdict)
        summaries = ran_since(now_ms(), {}, {})
        found = find_releases(client, judged_nodes(client, summaries), summaries, history_of(client), Rules())
        client.unblock(NODE)
        remove_claims(client, found)
        assert client.snapshot().nodes == {}
