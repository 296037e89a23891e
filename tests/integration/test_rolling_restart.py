"""Rolling restarts under load: requests that are retried once all succeed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count

import httpx
import pytest

from tests.integration.bodies import all_changes, block, current_list
from tests.integration.event_stream import WatchFollower, following
from tests.integration.listeners import current_nodes, get_listener, put, register
from tests.integration.process import NO_TLS, wait_until
from tests.integration.receiver import Receiver, receiving
from tests.integration.replicas import Replicas, wait_until_equal
from tests.length import longer

pytestmark = [pytest.mark.databases("postgresql"), pytest.mark.xdist_group("replicas")]


@dataclass
class RetryingCaller:
    """Sends requests to one of several URLs, and retries once at the next; `failed` are requests that failed twice."""

    urls: Sequence[str]
    statuses: Counter[int] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    def run(self, turn: Callable[[RetryingCaller, httpx.Client, int], None], over: threading.Event) -> None:
        """Run `turn` until the event is set."""
        with httpx.Client(timeout=30, trust_env=False, verify=NO_TLS) as client:
            for number in count():
                if over.wait(0.01):
                    return
                turn(self, client, number)

    def request(
        self, client: httpx.Client, number: int, method: str, path: str, **more: object
    ) -> httpx.Response | None:
        """The first response; None if both attempts failed."""
        said = []
        for url in (self.urls[number % len(self.urls)], self.urls[(number + 1) % len(self.urls)]):
            try:
                answer = client.request(method, f"{url}{path}", **more)  # type: ignore[arg-type]
            except httpx.TransportError as error:
                said.append(repr(error))
                continue
            self.statuses[answer.status_code] += 1
            if answer.status_code < 500:
                return answer
            said.append(f"{answer.status_code} {answer.text}")
        self.failed.append(f"{method} {path}: {said}")
        return None


def read(caller: RetryingCaller, client: httpx.Client, number: int) -> None:
    caller.request(client, number, "GET", "/blocklist")


def write(caller: RetryingCaller, client: httpx.Client, number: int) -> None:
    """Block and unblock one node. The first of two attempts may have succeeded."""
    path, cause = f"/blocklist/nodes/rolling-{id(caller)}", f"turn {number}"
    answer = caller.request(client, number, "PUT", path, json=block(cause=cause))
    if answer is not None:
        node = answer.json() if answer.status_code == 201 else answer.json()["blockedNode"]
        assert node["cause"] == cause
    answer = caller.request(client, number, "DELETE", path)
    assert answer is None or answer.status_code in {200, 404}


def send_heartbeat(caller: RetryingCaller, client: httpx.Client, number: int) -> None:
    answer = caller.request(client, number, "POST", "/listeners/rolling-beats/heartbeat", json={"sessionId": "s1"})
    assert answer is None or answer.status_code == 200, answer.text


@contextmanager
def background_load(urls: Sequence[Sequence[str]]) -> Iterator[list[RetryingCaller]]:
    """Run two writers, a reader and a listener for each set of URLs."""
    over = threading.Event()
    callers = [(RetryingCaller(way), turn) for way in urls for turn in (read, write, write, send_heartbeat)]
    with ThreadPoolExecutor(len(callers)) as pool:
        working = [pool.submit(caller.run, turn, over) for caller, turn in callers]
        try:
            yield [caller for caller, _ in callers]
        finally:
            over.set()
        for worked in working:
            worked.result(60)


def test_a_rolling_restart_loses_nothing_and_fails_no_request_retried_once(
    nginx_url: str, restartable_replicas: Replicas
) -> None:
    """Through nginx, and with clients that know both replicas."""
    direct = [process.url for process in restartable_replicas.processes]
    one = restartable_replicas.clients[0]
    wait_until_equal(restartable_replicas.clients)
    since, _ = current_list(one)
    with ExitStack() as stack:
        receivers = [stack.enter_context(receiving()) for _ in range(4)]
        for number, receiver in enumerate(receivers):
            receiver.register(restartable_replicas.clients[number % 2], f"rolling-{number}")
        register(one, "rolling-beats")
        followers = [stack.enter_context(following(urls, since)) for urls in (direct, direct[::-1], [nginx_url])]
        with background_load([direct, [nginx_url]]) as callers:
            for process in [*restartable_replicas.processes] * longer(1):
                _wait_for_progress(callers, followers, receivers)
                process.stop()
                _wait_for_progress(callers, followers, receivers)
                process.start()
            _wait_for_progress(callers, followers, receivers)
        assert [caller.failed for caller in callers] == [[]] * len(callers)
        last = put(one, "rolling-last")
        wait_until(lambda: all(follower.revision >= last for follower in followers))
        log = [change for change in all_changes(one) if since < change["revision"] <= last]
        for follower in followers:
            assert follower.changes == log
            assert set(follower.ends) <= {"bye"}, "a replica that stops says so"
        for receiver in receivers:
            receiver.wait(lambda it: it.has(last))
            assert receiver.nodes == current_nodes(one)
            assert not any(push.body["snapshot"] for push in receiver.applied[1:])
        assert get_listener(one, "rolling-beats")["state"] == "live"
    for listener in one.get("/listeners").json()["listeners"]:
        one.delete(f"/listeners/{listener['id']}")


def _wait_for_progress(
    callers: list[RetryingCaller], followers: list[WatchFollower], receivers: list[Receiver]
) -> None:
    """Wait until every caller, follower and receiver has made progress."""

    def steps() -> list[int]:
        heard = [len(follower.changes) for follower in followers] + [len(receiver.applied) for receiver in receivers]
        return [caller.statuses.total() for caller in callers] + heard

    goals = [number + 3 for number in steps()]
    wait_until(lambda: all(now >= goal for now, goal in zip(steps(), goals, strict=True)))
