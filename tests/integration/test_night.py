"""A night on call, with a tired person's mistakes: a storm of alerts, the wrong context, a typo, a job that refuses.

Each step once left a doubt: which service was asked, whether something was changed, whether the node is empty, what
stays blocked, and what to type next. The messages that answer these are asserted here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from threading import Event, Thread

import httpx
import pytest

from tests.alertmanager.posts import alert, post
from tests.integration.command import TIMEOUT, Command
from tests.integration.labels import report_labels
from tests.integration.listeners import heartbeat, register
from tests.integration.process import ServiceProcess, free_port, wait_until

RACKS = {f"r{rack}n{place:02}": {"rack": f"r{rack}"} for rack in (11, 12) for place in range(1, 5)}
REFUSED = "r12n03"


@pytest.fixture
def on_call(binaries: Path, fresh: ServiceProcess, tmp_path: Path) -> Command:
    """The contexts `prod`, the current one, and `lab`, which is switched off at night."""
    command = Command(binaries, fresh.url)
    command.env["XDG_CONFIG_HOME"] = str(tmp_path)
    del command.env["BLOCKLIST_URL"]
    command.stdout_of("config", "set", "prod", "url", fresh.url)
    command.stdout_of("config", "set", "lab", "url", f"http://127.0.0.1:{free_port()}")
    return command


@contextmanager
def following(client: httpx.Client) -> Iterator[None]:
    """A manager and a job that apply what they are told; the job refuses to leave one node."""
    ended = Event()

    def follow() -> None:
        while not ended.is_set():
            answer = client.get("/blocklist")
            revision = int(answer.headers["blocklist-revision"])
            evacuated = REFUSED in answer.json()
            heartbeat(client, "racks", ackedRevision=revision)
            heartbeat(
                client,
                "etl",
                ackedRevision=revision,
                taskManagers={"etl:1": REFUSED, "etl:2": "r12n04"},
                runningTasks={"etl:1": 4, "etl:2": 0 if "r12n04" in answer.json() else 2},
                refused={REFUSED: "its last host"} if evacuated else {},
            )
            time.sleep(0.1)

    thread = Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(TIMEOUT)


def finished(running: Popen[str]) -> tuple[int, list[str]]:
    output, _ = running.communicate(timeout=2 * TIMEOUT)
    return running.returncode, output.splitlines()


def test_a_night_on_call(on_call: Command, fresh: ServiceProcess, fresh_client: httpx.Client) -> None:
    report_labels(fresh_client, RACKS, lease=600)
    register(fresh_client, "etl", leaseSeconds=600)
    # 02:10. A switch fails, and an alert fires for each of its hosts.
    storm = [{"fingerprint": f"{place:08x}", **alert(node=f"r11n{place:02}")} for place in range(1, 5)]
    assert fresh_client.post("/integrations/alertmanager", json=post(*storm)).status_code == 200
    assert on_call.stdout_of("list", "-l", "rack=r11", "--owner", "alertmanager/*", "-o", "name").split() == [
        f"r11n{place:02}" for place in range(1, 5)
    ]
    # 02:15. The rack beside it must be drained. First in the wrong context: which one it was, and nothing is changed.
    done = on_call.run("drain", "-l", "rack=r12", "--context", "lab")
    assert (done.returncode, done.stdout) == (3, "")
    assert "The URL is that of the context lab (chosen by --context)." in done.stderr
    # Then with a misspelt label.
    done = on_call.run("drain", "-l", "rak=r12")
    assert (done.returncode, done.stdout) == (1, "")
    assert "did you mean rack?\nNothing was changed.\n" in done.stderr
    assert len(fresh_client.get("/blocklist").json()) == 4
    with following(fresh_client):
        # Then only one host, misspelt: it is not reported as empty, and the way back is printed.
        with on_call.running("drain", "r12n3", "--timeout", "2m") as running:
            code, lines = finished(running)
        assert code == 1
        assert lines[-2].endswith(f"did you mean {REFUSED}?")
        way_back = lines[-1].partition("to end that: blocklist ")[2].split()
        assert on_call.stdout_of(*way_back) == "r12n3 unblocked\n"
        # 02:20. The rack, at last: all but the host that the job does not leave.
        with on_call.running("drain", "-l", "rack=r12", "-r", "Switch r12", "--yes", "--timeout", "2m") as running:
            code, lines = finished(running)
        assert (code, lines[-3:]) == (
            1,
            [
                "3 of 4 nodes drained. Still held:",
                f"  {REFUSED}  etl: refuses: its last host, 4 tasks running",
                f"1 node stays blocked; to end that: blocklist unblock {REFUSED}",
            ],
        )
        wait_until(lambda: f"{REFUSED}, refused" in fresh_client.get("/page/map").text)
        assert "r12n04, evacuated" in fresh_client.get("/page/map").text
    # 03:00. The switch is back.
    done = on_call.run("unblock", "-l", "rack=r12", "--yes")
    assert (done.returncode, done.stderr) == (0, f"Context prod: {fresh.url}\n")
    # 09:00. What happened?
    changes = on_call.stdout_of("history", "-l", "rack=r12", "--since", "7h", "--no-headers").splitlines()
    assert [line.split()[1] for line in changes] == ["blocked"] * 4 + ["unblocked"] * 4
