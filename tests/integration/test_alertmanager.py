"""Alertmanager's webhook: alerts block nodes; ignored alerts are counted and are not errors."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import httpx2
import pytest

from app.settings import SettingsError, read_settings
from app.store.tables import AlertEvent, read_events
from blocklist.model.evidence import MEMORY_MS
from tests.alertmanager.posts import Body, alert, post, real_posts, with_action
from tests.integration.bodies import EVACUATE, MARK, all_changes, block, current_list, revision_of
from tests.integration.conftest import Start, StartInProcess, StartReplicas
from tests.integration.databases import ON_BOTH
from tests.integration.in_process import ManualClock, running_service
from tests.integration.problems import problem_of
from tests.integration.process import ServiceProcess
from tests.integration.test_claims import owners
from tests.integration.test_problems import database_locked

PATH: Final = "/integrations/alertmanager"
HOUR: Final = 3_600_000


def post_alerts(client: httpx.Client | httpx2.Client, body: Body) -> Body:
    """Post it; returns the outcomes."""
    answer = client.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == {"alerts", "truncatedAlerts"}
    became: Body = answer.json()["alerts"]
    return became


def get_node(client: httpx.Client | httpx2.Client, node_id: str = "n1") -> Body | None:
    answer = client.get(f"/blocklist/nodes/{node_id}")
    body: Body = answer.json()
    return body if answer.status_code == 200 else None


def alertmanager_metrics(client: httpx.Client | httpx2.Client) -> dict[str, float]:
    """The non-zero counters, by name and labels."""
    lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith("blocklist_alertmanager_")]
    found = (line.removeprefix("blocklist_alertmanager_").rsplit(" ", 1) for line in lines)
    return {name: float(count) for name, count in found if float(count) and not name.endswith("_created")}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def in_process_client(database_url: str, clock: ManualClock) -> Iterator[httpx2.Client]:
    """A client of a service with an empty list, in this process."""
    with running_service(database_url, clock) as client:
        yield client


def test_the_real_posts_block_and_free_as_the_alerts_fire_and_resolve(
    in_process_client: httpx2.Client, clock: ManualClock
) -> None:
    first, other, second, third, again, last = (with_action(body, "evacuate") for body in real_posts())
    assert post_alerts(in_process_client, first) == {"blocked": 2}
    body = get_node(in_process_client, "worker-17")
    assert body is not None
    assert (body["action"], body["cause"]) == (
        EVACUATE,
        "alert NodeDiskPressure: disk almost full on worker-17",
    )
    assert body["endTimestamp"] == str(clock.now + HOUR)
    assert post_alerts(in_process_client, other) == {"no_node": 1}
    assert post_alerts(in_process_client, second) == {"unchanged": 1, "freed": 1}
    assert list(current_list(in_process_client)[1]) == ["worker-18"]
    assert post_alerts(in_process_client, third) == {"blocked": 1, "unchanged": 1}
    assert post_alerts(in_process_client, again) == {"unchanged": 2}
    assert post_alerts(in_process_client, last) == {"freed": 2}
    assert current_list(in_process_client) == (6, {})
    log = [(change["type"], change["node"]["id"], change["createdBy"]) for change in all_changes(in_process_client)]
    assert log == [
        (kind, f"worker-{number}", "alertmanager")
        for kind, number in [
            ("blocked", 17), ("blocked", 18), ("unblocked", 17), ("blocked", 19), ("unblocked", 18), ("unblocked", 19)
        ]
    ]  # fmt: skip


def test_alerts_that_name_a_machine_differently_share_its_block(in_process_client: httpx2.Client) -> None:
    post_alerts(in_process_client, post(alert("DiskFull", node="N1.example.com")))
    assert post_alerts(in_process_client, post(alert("Hot", node="n1")))["merged"] == 1
    assert list(current_list(in_process_client)[1]) == ["N1.example.com"]
    post_alerts(in_process_client, post(alert("DiskFull", node="N1.example.com", resolved=True)))
    post_alerts(in_process_client, post(alert("Hot", node="n1", resolved=True)))
    assert current_list(in_process_client)[1] == {}


def test_the_response_has_all_outcomes_and_the_revision(in_process_client: httpx2.Client) -> None:
    body = post(
        alert(), alert(node="n2", blocklist="evacuate"), alert(blocklist=""), alert(node=""), {}, alert(node="a b"),
        alert(blocklist="off"), truncatedAlerts=3,
    )  # fmt: skip
    answer = in_process_client.post(PATH, json=body)
    alerts = {"blocked": 2, "unlabelled": 1, "unknown_action": 1, "no_node": 1, "bad_node": 1, "unreadable": 1}
    assert answer.json() == {"alerts": alerts, "truncatedAlerts": 3}
    assert (answer.headers["content-type"], revision_of(answer)) == ("application/json", 2)
    assert {
        node_id: (body["action"], body["cause"][:15]) for node_id, body in current_list(in_process_client)[1].items()
    } == {
        "n1": (MARK, "alert DiskFull"),
        "n2": (EVACUATE, "alert DiskFull"),
    }
    assert revision_of(in_process_client.post(PATH, json=post())) == 2
    assert alertmanager_metrics(in_process_client) == {
        "posts_total": 2,
        "truncated_total": 3,
        **{f'alerts_total{{outcome="{outcome}"}}': count for outcome, count in alerts.items()},
    }


def test_all_outcomes_have_a_metric_from_the_start(in_process_client: httpx2.Client) -> None:
    text = in_process_client.get("/metrics").text
    for outcome in ("blocked", "merged", "renewed", "unchanged", "freed", "kept", "crowded", "limited"):
        assert f'blocklist_alertmanager_alerts_total{{outcome="{outcome}"}} 0.0' in text


class TestResolving:
    def test_alerts_that_hold_a_node_survive_a_crash(self, fresh: ServiceProcess) -> None:
        with fresh.client() as client:
            post_alerts(client, post(alert("DiskFull"), alert("Hot")))
            post_alerts(client, post(alert("Hot", resolved=True)))
        fresh.kill()
        with fresh.start().client() as client:
            assert post_alerts(client, post(alert("DiskFull"))) == {"unchanged": 1}
            assert post_alerts(client, post(alert("DiskFull", resolved=True))) == {"freed": 1}

    def test_its_claim_is_removed_although_its_name_means_several_nodes_now(
        self, in_process_client: httpx2.Client
    ) -> None:
        in_process_client.put("/blocklist/nodes/n1.a/claims/kernel", json=block())
        assert post_alerts(in_process_client, post(alert(), alert("Hot"))) == {"merged": 2}
        in_process_client.put("/blocklist/nodes/n1.b/claims/kernel", json=block())
        body = post(alert(resolved=True), alert("Hot", resolved=True))
        assert post_alerts(in_process_client, body) == {"kept": 2}
        assert owners(in_process_client, "/blocklist/nodes/n1.a") == ["kernel"]

    def test_its_claim_is_removed_although_its_address_is_no_longer_known(
        self, in_process_client: httpx2.Client
    ) -> None:
        in_process_client.put("/listeners/yarn", json={"role": "RESOURCE_MANAGER", "sessionId": "s1"})
        nodes = [{"id": "worker-7", "addresses": ["10.0.0.7"]}]
        in_process_client.post("/listeners/yarn/heartbeat", json={"sessionId": "s1", "nodes": nodes})
        in_process_client.put("/blocklist/nodes/worker-7/claims/kernel", json=block())
        assert post_alerts(in_process_client, post(alert(node="10.0.0.7"))) == {"merged": 1}
        in_process_client.delete("/blocklist/nodes/worker-7/claims/kernel")
        in_process_client.delete("/listeners/yarn")
        body = post(alert(node="10.0.0.7", resolved=True), alert(node="n2"), alert(node="n3", resolved=True))
        assert post_alerts(in_process_client, body) == {"freed": 1, "blocked": 1, "unchanged": 1}
        assert list(current_list(in_process_client)[1]) == ["n2"]


class TestDismissal:
    """An alert that was firing when somebody unblocked the node does not block it again until it fires again."""

    FIRING: Final = {**alert("DiskFull"), "startsAt": "1970-01-01T00:16:39.5Z"}
    """Since half a second before the clock begins."""

    def test_until_it_has_resolved_and_fires_anew(self, in_process_client: httpx2.Client, clock: ManualClock) -> None:
        post_alerts(in_process_client, post(self.FIRING))
        clock.now += 1000
        assert in_process_client.delete("/blocklist/nodes/N1").status_code == 200
        for _ in range(2):
            assert post_alerts(in_process_client, post(self.FIRING)) == {"dismissed": 1}
            clock.now += HOUR
        assert post_alerts(in_process_client, post({**self.FIRING, "status": "resolved"})) == {"unchanged": 1}
        anew = {**self.FIRING, "startsAt": "1970-01-01T00:16:41.001+00:00"}
        assert post_alerts(in_process_client, post(anew)) == {"blocked": 1}

    def test_it_is_visible_with_its_author(self, in_process_client: httpx2.Client, clock: ManualClock) -> None:
        post_alerts(in_process_client, post(self.FIRING))
        owner = in_process_client.get("/claims").json()["claims"][0]["owner"]
        assert in_process_client.get("/blocklist/nodes/n1/claims").json()["dismissed"] == []
        in_process_client.delete("/blocklist/nodes/n1").raise_for_status()
        assert in_process_client.get("/blocklist/nodes/n1/claims").json() == {
            "id": "n1",
            "claims": [],
            "dismissed": [{"owner": owner, "at": str(clock.now), "dismissedBy": None}],
        }
        assert [it["owner"] for it in all_changes(in_process_client)[-1]["dismissed"]] == [owner]

    def test_the_list_of_claims_has_it_page_by_page_and_by_owner(
        self, in_process_client: httpx2.Client, clock: ManualClock
    ) -> None:
        post_alerts(
            in_process_client, post(self.FIRING, {**alert("Hot", node="n2"), "startsAt": self.FIRING["startsAt"]})
        )
        owner = in_process_client.get("/claims").json()["claims"][0]["owner"]
        in_process_client.delete("/blocklist/nodes/n1").raise_for_status()
        dismissed = [{"node": "n1", "owner": owner, "at": str(clock.now), "dismissedBy": None}]
        first = in_process_client.get("/claims?limit=1").json()
        assert first == {"claims": [], "dismissed": dismissed, "next": "n1"}
        second = in_process_client.get("/claims?limit=1&after=n1").json()
        assert ([it["node"] for it in second["claims"]], second["dismissed"], second["next"]) == (["n2"], [], None)
        assert in_process_client.get(f"/claims?owner={owner}").json() == {**first, "next": None}
        assert in_process_client.get("/claims?owner=anna").json() == {"claims": [], "dismissed": [], "next": None}
        clock.now += MEMORY_MS
        assert in_process_client.get("/claims").json()["dismissed"] == []

    def test_other_alerts_and_nodes_are_not_affected(self, in_process_client: httpx2.Client) -> None:
        post_alerts(in_process_client, post(self.FIRING))
        in_process_client.delete("/blocklist/nodes/n1").raise_for_status()
        others = post({**alert("Hot"), "startsAt": self.FIRING["startsAt"]}, alert("DiskFull", node="n2"))
        assert post_alerts(in_process_client, others) == {"blocked": 2}

    def test_removing_its_claim_is_no_dismissal(self, in_process_client: httpx2.Client) -> None:
        post_alerts(in_process_client, post(self.FIRING))
        owner = in_process_client.get("/claims").json()["claims"][0]["owner"]
        in_process_client.delete(f"/blocklist/nodes/n1/claims/{owner}").raise_for_status()
        assert post_alerts(in_process_client, post(self.FIRING)) == {"blocked": 1}

    @ON_BOTH
    def test_a_new_start_without_an_end_changes_nothing(self, database_url: str, clock: ManualClock) -> None:
        """As after a restart of Prometheus."""
        with running_service(database_url, clock) as client:
            post_alerts(client, post(firing(0)))
            client.delete("/blocklist/nodes/n1").raise_for_status()
            clock.now += HOUR
            assert post_alerts(client, post(firing(HOUR))) == {"dismissed": 1}
        with running_service(database_url, clock) as client:
            assert post_alerts(client, post(firing(HOUR))) == {"dismissed": 1}
            assert post_alerts(client, post(resolved(HOUR))) == {"unchanged": 1}
            clock.now += HOUR
            assert post_alerts(client, post(firing(2 * HOUR))) == {"blocked": 1}
            clock.now += HOUR // 2 + 1
            assert post_alerts(client, post(firing(2 * HOUR))) == {"renewed": 1}

    @ON_BOTH
    def test_it_survives_a_crash(self, fresh: ServiceProcess) -> None:
        firing = {**self.FIRING, "startsAt": "2020-01-01T00:00:00Z"}
        with fresh.client() as client:
            post_alerts(client, post(firing))
            client.delete("/blocklist/nodes/n1").raise_for_status()
        fresh.kill()
        with fresh.start().client() as client:
            assert post_alerts(client, post(firing)) == {"dismissed": 1}
            assert len(client.get("/blocklist/nodes/n1/claims").json()["dismissed"]) == 1


START: Final = 1_000_000
"""The beginning of the manual clock."""


def firing(since: int, name: str = "DiskFull", *, node: str = "n1") -> Body:
    """An alert that fires since this number of milliseconds after the start."""
    return {**alert(name, node=node), "startsAt": rfc3339(START + since)}


def resolved(since: int, name: str = "DiskFull", *, node: str = "n1") -> Body:
    """The same, a minute later."""
    ended = rfc3339(START + since + 60_000)
    return {**alert(name, resolved=True, node=node), "startsAt": rfc3339(START + since), "endsAt": ended}


def rfc3339(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")


def automatic_blocks(client: httpx.Client | httpx2.Client) -> int:
    found: int = client.get("/blocklist/nodes/n1/status").json()["automaticBlocks"]
    return found


class TestEvents:
    """An event of an alert that the service has seen is not a new one."""

    pytestmark = ON_BOTH

    def test_late_posts_change_nothing(self, in_process_client: httpx2.Client, clock: ManualClock) -> None:
        assert post_alerts(in_process_client, post(firing(0))) == {"blocked": 1}
        clock.now += 60_000
        assert post_alerts(in_process_client, post(resolved(0))) == {"freed": 1}
        for _ in range(4):
            clock.now += 60_000
            assert post_alerts(in_process_client, post(firing(0))) == {"late": 1}
            assert post_alerts(in_process_client, post(resolved(0))) == {"unchanged": 1}
        assert get_node(in_process_client) is None
        assert automatic_blocks(in_process_client) == 1
        clock.now += 60_000
        assert post_alerts(in_process_client, post(firing(6 * 60_000))) == {"blocked": 1}
        assert automatic_blocks(in_process_client) == 2

    def test_alternating_alerts_block_once_each(self, in_process_client: httpx2.Client, clock: ManualClock) -> None:
        for _ in range(20):
            post_alerts(in_process_client, post(firing(0, "Hot"), resolved(0)))
            clock.now += 30_000
            post_alerts(in_process_client, post(resolved(0, "Hot"), firing(0)))
            clock.now += 30_000
        assert automatic_blocks(in_process_client) <= 1
        assert [it["type"] for it in all_changes(in_process_client)].count("blocked") <= 1

    def test_what_another_replica_has_seen_end_meanwhile_is_undone(
        self, in_process_client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The end is written after this post has read what is known, and before it writes what it knows."""
        post_alerts(in_process_client, post(resolved(0)))
        asked: list[object] = []

        def read_too_early(*args: Any) -> dict[str, AlertEvent]:
            asked.append(args)
            return {} if len(asked) == 1 else read_events(*args)

        monkeypatch.setattr("app.alertmanager.read_events", read_too_early)
        assert post_alerts(in_process_client, post(firing(0), firing(0, node="n2"))) == {"blocked": 1, "late": 1}
        assert (get_node(in_process_client), get_node(in_process_client, "n2") is None) == (None, False)
        assert post_alerts(in_process_client, post(firing(0))) == {"late": 1}

    def test_a_repeated_block_stays_as_long_when_it_is_renewed(
        self, in_process_client: httpx2.Client, clock: ManualClock
    ) -> None:
        post_alerts(in_process_client, post(firing(0)))
        clock.now += 60_000
        post_alerts(in_process_client, post(resolved(0)))
        clock.now += 60_000
        second = firing(3 * 60_000)
        for outcome in ("blocked", "renewed", "renewed"):
            assert post_alerts(in_process_client, post(second)) == {outcome: 1}
            node = get_node(in_process_client)
            assert node is not None
            assert int(node["endTimestamp"]) == clock.now + 2 * HOUR
            assert automatic_blocks(in_process_client) == 2
            clock.now += HOUR + 1

    def test_an_event_that_outlasts_its_blocks_counts_once(self, database_url: str, clock: ManualClock) -> None:
        """Alertmanager repeats after four hours, unless it is configured otherwise; the block lasts one."""
        for _ in range(5):
            with running_service(database_url, clock) as client:
                assert post_alerts(client, post(firing(0))) == {"blocked": 1}
                node = get_node(client)
                assert node is not None
                assert int(node["endTimestamp"]) == clock.now + HOUR
                assert automatic_blocks(client) == 1
                clock.now += 4 * HOUR
                assert get_node(client) is None

    def test_an_alert_that_a_limit_rejected_was_not_seen(self, start_in_process: StartInProcess) -> None:
        with start_in_process(max_blocked="1").client() as client:
            client.put("/blocklist/nodes/other", json=block()).raise_for_status()
            assert post_alerts(client, post(firing(0))) == {"limited": 1}
            client.delete("/blocklist/nodes/other").raise_for_status()
            assert post_alerts(client, post(firing(0))) == {"blocked": 1}
            assert automatic_blocks(client) == 1

    def test_a_group_with_omitted_alerts_says_nothing_about_these(self, in_process_client: httpx2.Client) -> None:
        alerts = [firing(0, node=f"n{number}") for number in range(600)]
        assert post_alerts(in_process_client, post(*alerts)) == {"blocked": 600}
        rest = post(*(resolved(0, node=f"n{number}") for number in range(1, 10)), truncatedAlerts=591)
        assert post_alerts(in_process_client, rest) == {"freed": 9}
        late = post_alerts(in_process_client, post(*alerts, truncatedAlerts=5))
        assert late == {"late": 9, "unchanged": 591}

    @pytest.mark.databases("postgresql")
    def test_replicas_that_get_the_same_posts_at_once_make_one_block(self, start_replicas: StartReplicas) -> None:
        clients = start_replicas().clients
        with ThreadPoolExecutor(len(clients)) as pool:
            for number in range(10):
                for body in (post(firing(number * HOUR)), post(resolved(number * HOUR))):
                    found = list(pool.map(post_alerts, clients, [body] * len(clients)))
                    assert [it for it in found if set(it) <= {"blocked", "freed"}], found
                assert list(pool.map(post_alerts, clients, [post(firing(number * HOUR))] * len(clients))) == [
                    {"late": 1}
                ] * len(clients)
        types = [it["type"] for it in all_changes(clients[0])]
        assert types == ["blocked", "unblocked"] * 10


MINUTE: Final = 60_000
STORM: Final = {"n1": (1, 1), "n2": (2, 8), "n3": (3, 17), "n4": (10, 2), "n5": (30, 30), "n6": (1, 59)}
"""Nodes whose alert fires for a number of minutes, and then does not for another one, again and again."""


def storm(client: httpx2.Client, clock: ManualClock, hours: int) -> dict[str, int]:
    """Let two Alertmanagers post the alerts of STORM; returns how often each node was blocked.

    The second one is three minutes late. One in ten posts is followed by an old one: firing, with the startsAt of an
    event that is over.
    """
    begin = clock.now
    chance = random.Random(41)
    for minute in range(hours * 60):
        clock.now = begin + minute * MINUTE
        for lag in (0, 3):
            if minute >= lag:
                post_alerts(client, post(*(_flapping(node, minute - lag) for node in STORM)))
        if chance.random() < 0.1:
            later = [node for node, period in STORM.items() if minute >= sum(period)]
            post_alerts(client, post(*(_flapping(node, minute, back=1, resolved=False) for node in later)))
    blocked = Counter(it["node"]["id"] for it in all_changes(client) if it["type"] == "blocked")
    return {node: blocked[node] for node in STORM}


def _flapping(node: str, minute: int, *, back: int = 0, resolved: bool | None = None) -> Body:
    """The alert at this minute, or its event that number of events before that."""
    fires, rests = STORM[node]
    period = fires + rests
    start = (minute // period - back) * period * MINUTE
    ended = minute % period >= fires if resolved is None else resolved
    body = {**alert(resolved=ended, node=node, blocklist="evacuate"), "startsAt": rfc3339(START + start)}
    return {**body, "endsAt": rfc3339(START + start + fires * MINUTE)} if ended else body


class TestMinimum:
    """A block stays for a while although its alert has resolved, and longer if it is repeated."""

    @pytest.fixture
    def held(self, database_url: str, clock: ManualClock) -> Iterator[httpx2.Client]:
        with running_service(database_url, clock, alertmanager_minimum=timedelta(minutes=5)) as client:
            yield client

    def test_it_is_kept_when_the_alert_resolves(self, held: httpx2.Client, clock: ManualClock) -> None:
        begin = clock.now
        assert post_alerts(held, post(firing(0))) == {"blocked": 1}
        clock.now += MINUTE
        for _ in range(3):
            assert post_alerts(held, post(resolved(0))) == {"held": 1}
            node = get_node(held)
            assert node is not None
            assert int(node["endTimestamp"]) == begin + 5 * MINUTE
        assert [it["type"] for it in all_changes(held)] == ["blocked", "narrowed"]
        assert post_alerts(held, post(firing(0))) == {"late": 1}
        clock.now = begin + 5 * MINUTE
        assert get_node(held) is None
        assert post_alerts(held, post(firing(0))) == {"late": 1}

    def test_one_that_lasted_as_long_is_removed_at_once(self, held: httpx2.Client, clock: ManualClock) -> None:
        post_alerts(held, post(firing(0)))
        clock.now += 5 * MINUTE
        assert post_alerts(held, post(resolved(0))) == {"freed": 1}

    def test_a_repeated_one_stays_twice_as_long(self, held: httpx2.Client, clock: ManualClock) -> None:
        for number, minutes in enumerate((5, 10, 20, 40)):
            since = number * HOUR
            clock.now = START + since
            assert post_alerts(held, post(firing(since))) == {"blocked": 1}
            assert post_alerts(held, post(resolved(since))) == {"held": 1}
            node = get_node(held)
            assert node is not None
            assert int(node["endTimestamp"]) == clock.now + minutes * MINUTE

    def test_an_alert_that_fires_again_meanwhile_renews_it(self, held: httpx2.Client, clock: ManualClock) -> None:
        post_alerts(held, post(firing(0)))
        post_alerts(held, post(resolved(0)))
        clock.now += 2 * MINUTE
        assert post_alerts(held, post(firing(2 * MINUTE))) == {"renewed": 1}
        clock.now += 3 * MINUTE
        assert get_node(held) is not None
        assert post_alerts(held, post(resolved(2 * MINUTE))) == {"freed": 1}
        assert automatic_blocks(held) == 1

    def test_a_person_frees_the_node_at_once(self, held: httpx2.Client) -> None:
        post_alerts(held, post(firing(0)))
        post_alerts(held, post(resolved(0)))
        assert held.delete("/blocklist/nodes/n1").status_code == 200
        assert get_node(held) is None

    def test_a_claim_under_another_name_is_held_too(self, held: httpx2.Client) -> None:
        held.put("/blocklist/nodes/n1.a/claims/kernel", json=block())
        post_alerts(held, post(firing(0)))
        held.put("/blocklist/nodes/n1.b/claims/kernel", json=block())
        assert post_alerts(held, post(resolved(0))) == {"held": 1}
        assert len(owners(held, "/blocklist/nodes/n1.a")) == 2

    def test_a_storm_blocks_each_node_a_few_times(self, held: httpx2.Client, clock: ManualClock) -> None:
        """Without a minimum, n1 is blocked 120 times."""
        blocked = storm(held, clock, 4)
        assert all(count <= 8 for count in blocked.values()), blocked


class TestSettings:
    def test_the_label_and_the_duration(self, start_in_process: StartInProcess) -> None:
        service = start_in_process(alertmanager_node_label="host", alertmanager_duration="2h")
        with service.client() as client:
            assert post_alerts(client, post(alert(host="n7"), alert(node="x", instance="[::1]:9100"))) == {"blocked": 2}
            nodes = current_list(client)[1]
            assert sorted(nodes) == ["::1", "n7"]
            assert int(nodes["n7"]["endTimestamp"]) == service.clock() + 2 * HOUR

    @pytest.mark.parametrize(
        ("name", "value"),
        [("alertmanager_node_label", "a-b"), ("alertmanager_node_label", ""), ("alertmanager_duration", "0s")],
    )
    def test_invalid_settings_prevent_the_start(self, name: str, value: str) -> None:
        with pytest.raises(SettingsError, match=f"BLOCKLIST_{name.upper()}"):
            read_settings({f"BLOCKLIST_{name.upper()}": value})


class TestLimits:
    """A block rejected by a limit is not an error, because sending it again would not help."""

    def test_a_rejected_alert_is_counted_and_logged_and_the_others_are_applied(self, start: Start) -> None:
        process = start(max_blocked="2")
        with process.client() as client:
            body = post(alert(), alert(node="n2"), alert(node="n3"))
            assert post_alerts(client, body) == {"blocked": 2, "limited": 1}
            assert sorted(current_list(client)[1]) == ["n1", "n2"]
            assert alertmanager_metrics(client)['alerts_total{outcome="limited"}'] == 1
            assert 'blocklist_refused_by_limit_total{source="alertmanager"} 1.0' in client.get("/metrics").text
            assert "limit rejected the block of an alert" in process.log()
            # What is freed makes room, whatever the order.
            assert post_alerts(client, post(alert(node="n3"), alert(resolved=True))) == {"freed": 1, "blocked": 1}

    def test_many_rejected_alerts_are_checked_in_several_transactions(self, start_in_process: StartInProcess) -> None:
        with start_in_process(max_blocked="5").client() as client:
            body = post(*(alert(node=f"n{number}") for number in range(100)))
            assert post_alerts(client, body) == {"blocked": 5, "limited": 95}
            metrics = client.get("/metrics").text
            assert 'blocklist_refused_by_limit_total{source="alertmanager"} 95.0' in metrics
            # One in which all were rejected together, and ten of ten nodes each.
            assert "blocklist_commit_seconds_count 11.0" in metrics

    def test_a_resolved_alert_is_applied_if_another_one_is_rejected(self, start: Start) -> None:
        first = start()
        with first.client() as client:
            post_alerts(client, post(alert("Hot")))
        first.stop()
        with start(first.folder, longest_block_admin="2h", alertmanager_duration="3h").client() as client:
            body = post(alert("Hot", resolved=True), alert("DiskFull"))
            assert post_alerts(client, body) == {"limited": 1, "freed": 1}
            assert current_list(client)[1] == {}


class TestErrors:
    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
    def test_content_types_that_other_sites_can_send_are_rejected(self, client: httpx.Client, kind: str) -> None:
        problem_of(client.post(PATH, content=b'{"alerts": []}', headers={"content-type": kind}), 400)

    @pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
    def test_json_is_accepted(self, client: httpx.Client, kind: str) -> None:
        assert client.post(PATH, content=b'{"alerts": []}', headers={"content-type": kind}).status_code == 200

    def test_at_most_2_mib_are_accepted(self, client: httpx.Client) -> None:
        def sized(size: int) -> bytes:
            start, end = b'{"alerts": [], "x": "', b'"}'
            return start + b"x" * (size - len(start) - len(end)) + end

        kind = {"content-type": "application/json"}
        assert client.post(PATH, content=sized(2 * 1024 * 1024), headers=kind).status_code == 200
        problem_of(client.post(PATH, content=sized(2 * 1024 * 1024 + 1), headers=kind), 413)

    def test_while_the_database_is_unavailable_the_response_is_503(
        self, fresh: ServiceProcess, fresh_client: httpx.Client
    ) -> None:
        body = post(alert(), alert(node="n2"), alert(blocklist=""))
        with database_locked(fresh.database):
            answer = fresh_client.post(PATH, json=body, timeout=60)
            problem_of(answer, 503)
            assert int(answer.headers["retry-after"]) >= 1
            assert current_list(fresh_client)[1] == {}
            assert alertmanager_metrics(fresh_client) == {}
        assert post_alerts(fresh_client, body) == {"blocked": 2, "unlabelled": 1}
        assert alertmanager_metrics(fresh_client)["posts_total"] == 1

    def test_one_post_is_one_transaction(self, in_process_client: httpx2.Client) -> None:
        assert post_alerts(in_process_client, post(*(alert(node=f"n{number}") for number in range(500)))) == {
            "blocked": 500
        }
        metrics = in_process_client.get("/metrics").text
        assert "blocklist_commit_changes_count 1.0" in metrics
        assert "blocklist_commit_changes_sum 500.0" in metrics

    def test_a_long_post_is_several_transactions_so_that_others_are_served(
        self, in_process_client: httpx2.Client
    ) -> None:
        firing = [
            alert("A", node="n0"),
            alert("B", node="n0"),
            *(alert(node=f"n{number}") for number in range(1, 1100)),
        ]
        assert post_alerts(in_process_client, post(*firing)) == {"blocked": 1101}
        metrics = in_process_client.get("/metrics").text
        assert "blocklist_commit_changes_count 3.0" in metrics
        assert 'blocklist_commit_changes_bucket{le="500.0"} 3.0' in metrics
        assert "blocklist_commit_changes_sum 1100.0" in metrics
        answer = in_process_client.post(PATH, json=post(*(alert(node=f"m{number}") for number in range(501))))
        assert revision_of(answer) == 1601

    def test_what_resolves_makes_room_for_what_fires_in_a_long_post(self, start_in_process: StartInProcess) -> None:
        with start_in_process(max_blocked="700").client() as client:
            assert post_alerts(client, post(*(alert(node=f"n{number}") for number in range(700)))) == {"blocked": 700}
            firing = [alert(node=f"m{number}") for number in range(700)]
            resolved = [alert(node=f"n{number}", resolved=True) for number in range(700)]
            assert post_alerts(client, post(*firing, *resolved)) == {"freed": 700, "blocked": 700}


NASTY: Final[list[Any]] = [
    "\x00\x1b[2J", "a,b,c", "," * 500, "x" * 100_000, "\ud800", "\u2028\u2029", "<script>alert(1)</script>",
    "resolved DiskFull [aaaaaaaa]", "ok],Kernel upgrade",
]  # fmt: skip


@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
@pytest.mark.parametrize("where", ["summary", "name"])
def test_any_text_is_safe(client: httpx.Client, node_id: str, text: str, where: str) -> None:
    value = alert(summary=text, node=node_id) if where == "summary" else alert(text, node=node_id)
    assert send_escaped(client, post(value)) == {"blocked": 1}
    body = get_node(client, node_id)
    assert body is not None
    assert len(body["cause"]) <= 1024
    assert len(body["cause"].split(",")) == 1
    # What the list shows goes back as it is: it is a cause like any other.
    again = block(cause=body["cause"], allowMerge=True, endTimestamp=body["endTimestamp"])
    assert client.put(f"/blocklist/nodes/{node_id}", json=again).json() == body
    value["status"] = "resolved"
    assert send_escaped(client, post(value)) == {"kept": 1}


def send_escaped(client: httpx.Client, body: Body) -> Body:
    """Post it as ASCII, so that a lone surrogate can be sent; returns the outcomes."""
    answer = client.post(PATH, content=json.dumps(body), headers={"content-type": "application/json"})
    became: Body = answer.json()["alerts"]
    return became
