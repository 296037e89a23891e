"""Each replica is stopped and started again, twice, while everybody is at work: nobody who tries once more notices."""

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

from tests.integration.bodies import all_changes, block, held
from tests.integration.event_stream import Follower, following
from tests.integration.listeners import known, plain, put, register
from tests.integration.process import NO_TLS, wait_until
from tests.integration.receiver import Receiver, receiving
from tests.integration.replicas import Replicas, agree

pytestmark = [pytest.mark.databases("postgresql"), pytest.mark.xdist_group("replicas")]


@dataclass
class Caller:
    """Asks one of some URLs, and where that fails once more the next; `failed` is what failed twice."""

    urls: Sequence[str]
    asked: Counter[int] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    def work(self, turn: Callable[[Caller, httpx.Client, int], None], over: threading.Event) -> None:
        """Take turns until it is over."""
        with httpx.Client(timeout=30, trust_env=False, verify=NO_TLS) as client:
            for number in count():
                if over.wait(0.01):
                    return
                turn(self, client, number)

    def ask(self, client: httpx.Client, number: int, method: str, path: str, **more: object) -> httpx.Response | None:
        """The answer of the first that has one; None if neither has."""
        said = []
        for url in (self.urls[number % len(self.urls)], self.urls[(number + 1) % len(self.urls)]):
            try:
                answer = client.request(method, f"{url}{path}", **more)  # type: ignore[arg-type]
            except httpx.TransportError as error:
                said.append(repr(error))
                continue
            self.asked[answer.status_code] += 1
            if answer.status_code < 500:
                return answer
            said.append(f"{answer.status_code} {answer.text}")
        self.failed.append(f"{method} {path}: {said}")
        return None


def read(caller: Caller, client: httpx.Client, number: int) -> None:
    caller.ask(client, number, "GET", "/blocklist")


def write(caller: Caller, client: httpx.Client, number: int) -> None:
    """A node of its own. What was asked twice may have been done by the first, and is so in any case."""
    path, cause = f"/blocklist/nodes/rolling-{id(caller)}", f"turn {number}"
    answer = caller.ask(client, number, "PUT", path, json=block(cause=cause))
    if answer is not None:
        node = answer.json() if answer.status_code == 201 else answer.json()["blockedNode"]
        assert node["cause"] == cause
    answer = caller.ask(client, number, "DELETE", path)
    assert answer is None or answer.status_code in {200, 404}


def beat(caller: Caller, client: httpx.Client, number: int) -> None:
    answer = caller.ask(client, number, "POST", "/listeners/rolling-beats/heartbeat", json={"sessionId": "s1"})
    assert answer is None or answer.status_code == 200, answer.text


@contextmanager
def at_work(urls: Sequence[Sequence[str]]) -> Iterator[list[Caller]]:
    """Two writers, a reader and a listener for each way to the service, until the end of the block."""
    over = threading.Event()
    callers = [(Caller(way), turn) for way in urls for turn in (read, write, write, beat)]
    with ThreadPoolExecutor(len(callers)) as pool:
        working = [pool.submit(caller.work, turn, over) for caller, turn in callers]
        try:
            yield [caller for caller, _ in callers]
        finally:
            over.set()
        for worked in working:
            worked.result(60)


def test_nothing_is_lost_and_nothing_fails_that_is_tried_once_more(front: str, mortals: Replicas) -> None:
    """By nginx, and by clients that know both replicas."""
    direct = [process.url for process in mortals.processes]
    one = mortals.clients[0]
    agree(mortals.clients)
    since, _ = held(one)
    with ExitStack() as stack:
        receivers = [stack.enter_context(receiving()) for _ in range(4)]
        for number, receiver in enumerate(receivers):
            receiver.register(mortals.clients[number % 2], f"rolling-{number}")
        register(one, "rolling-beats")
        followers = [stack.enter_context(following(urls, since)) for urls in (direct, direct[::-1], [front])]
        with at_work([direct, [front]]) as callers:
            for process in (*mortals.processes, *mortals.processes):
                _all_move(callers, followers, receivers)
                process.stop()
                _all_move(callers, followers, receivers)
                process.start()
            _all_move(callers, followers, receivers)
        assert [caller.failed for caller in callers] == [[]] * len(callers)
        last = put(one, "rolling-last")
        wait_until(lambda: all(follower.revision >= last for follower in followers))
        log = [change for change in all_changes(one) if since < change["revision"] <= last]
        for follower in followers:
            assert follower.changes == log
            assert set(follower.ends) <= {"bye"}, "a replica that stops says so"
        for receiver in receivers:
            receiver.wait(lambda it: it.has(last))
            assert receiver.nodes == plain(one)
            assert not any(push.body["snapshot"] for push in receiver.applied[1:])
        assert known(one, "rolling-beats")["state"] == "live"
    for listener in one.get("/listeners").json()["listeners"]:
        one.delete(f"/listeners/{listener['id']}")


def _all_move(callers: list[Caller], followers: list[Follower], receivers: list[Receiver]) -> None:
    """Wait until everybody has got on by some steps."""

    def steps() -> list[int]:
        heard = [len(follower.changes) for follower in followers] + [len(receiver.applied) for receiver in receivers]
        return [caller.asked.total() for caller in callers] + heard

    goals = [number + 3 for number in steps()]
    wait_until(lambda: all(now >= goal for now, goal in zip(steps(), goals, strict=True)), seconds=60)
