"""The command in scripts: an exit code is an answer only if there is one, whatever happens to its streams."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final, Never

import httpx
import pytest

from tests.integration.bodies import block, now_ms
from tests.integration.command import TIMEOUT, Command, interrupt, run
from tests.integration.conftest import Start
from tests.integration.fake_servers import SERVICE_HEADERS, fake_server, http_response, respond, respond_endlessly
from tests.integration.labels import report_labels
from tests.integration.listeners import heartbeat, put, register
from tests.integration.process import ROOT, ServiceProcess, free_port, wait_until


def shell(command: Command, script: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell."""
    done = subprocess.run(
        ["sh", "-c", script], env=command.env, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("credentials", [{}, {"BLOCKLIST_TOKEN": "blocklist_wrong"}], ids=["no token", "a wrong token"])
def test_a_rejected_question_is_not_answered_with_not_blocked(
    binaries: Path, start: Start, tmp_path: Path, credentials: dict[str, str]
) -> None:
    service = start(auth="tokens", admin_token_file=str(tmp_path / "admin.token"))
    done = Command(binaries, service.url).run("is-blocked", "n1", **credentials)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("Unauthorized: "), done.stderr


def test_the_documented_script_goes_on_only_if_the_host_is_not_blocked(command: Command, node_id: str) -> None:
    page = (ROOT / "docs" / "command.md").read_text(encoding="utf-8")
    script = page.partition("answer=$(")[2].partition("```")[0].replace("$(hostname)", node_id)
    script = f"answer=$({script}\necho maintenance"
    assert (shell(command, script).returncode, shell(command, script).stdout) == (0, "maintenance\n")
    unusable = [
        f"PYTHONHOME=/nonexistent; export PYTHONHOME\n{script}",
        f"blocklist() {{ {sys.executable} -S -c 'import blocklist_of_a_removed_python'; }} 2>/dev/null\n{script}",
        f"BLOCKLIST_URL=http://127.0.0.1:1; export BLOCKLIST_URL\n{script}",
    ]
    for line in unusable:
        done = shell(command, f"exec 2>/dev/null\n{line}")
        assert (done.returncode, done.stdout) == (1, "")
    command.stdout_of("block", node_id, "-r", "Disk")
    assert (shell(command, script).returncode, shell(command, script).stdout) == (0, "")


AWAY = "http://10.255.255.1:8224"


@pytest.mark.parametrize(
    ("environment", "what"),
    [
        ({"HTTP_PROXY": "foo://x"}, "give HTTP_PROXY as http://host:port"),
        ({"HTTP_PROXY": "http://proxy:99999"}, "give HTTP_PROXY as http://host:port"),
        ({"HTTP_PROXY": "http://"}, "give HTTP_PROXY as http://host:port"),
        ({"HTTP_PROXY": "http://a\udcffb:1"}, "give HTTP_PROXY as http://host:port"),
        ({"HTTP_PROXY": "http://127.0.0.1:1"}, "out of reach through the proxy 127.0.0.1:1"),
        ({"ALL_PROXY": "socks5://proxy:1080"}, "install httpx[socks]"),
        ({"BLOCKLIST_URL": "https://127.0.0.1:1", "SSL_CERT_FILE": "/nonexistent"}, "unset SSL_CERT_FILE=/nonexistent"),
        ({"BLOCKLIST_URL": "https://127.0.0.1:1", "SSL_CERT_FILE": "/etc/hostname"}, "unset SSL_CERT_FILE="),
        ({"BLOCKLIST_URL": "https://127.0.0.1:1", "SSLKEYLOGFILE": "/nonexistent/log"}, "SSLKEYLOGFILE=/nonexist"),
        ({"BLOCKLIST_URL": "http://nowhere.invalid"}, "out of reach"),
        ({"BLOCKLIST_URL": "http://[fe80::1%25nowhere]:8224"}, "out of reach"),
        ({"BLOCKLIST_URL": "http://a..b"}, "out of reach"),
    ],
    ids=str,
)
@pytest.mark.parametrize("arguments", ["is-blocked n1", "block n1 -r Disk", "unblock n1", "list", "config check"])
def test_a_network_that_cannot_be_used_is_no_answer(
    command: Command, environment: dict[str, str], what: str, arguments: str
) -> None:
    done = command.run(*arguments.split(), **{"BLOCKLIST_URL": AWAY} | environment)
    assert done.returncode == 3
    assert what in done.stderr, done.stderr
    assert done.stdout == "" or arguments == "config check"


@pytest.mark.parametrize(
    "environment",
    [
        {"NO_PROXY": "localhost,fe80::/10"},
        {"NO_PROXY": "[::1]"},
        {"HTTP_PROXY": "foo://x"},
        {"ALL_PROXY": "socks5://proxy:1080"},
        {"COLUMNS": "0"},
        {"COLUMNS": "wide"},
        {"TERM": "dumb"},
        {"LANG": "xx_YY.foo", "LC_ALL": "tr_TR.ISO-8859-9"},
        {"TZ": "no/where"},
        {"HOME": "/etc/hostname"},
        {"HOME": ""},
        {"XDG_CONFIG_HOME": "\udcff"},
        {"TMPDIR": "/nonexistent"},
        {"SSL_CERT_FILE": "/nonexistent"},
        {"REQUESTS_CA_BUNDLE": "/nonexistent"},
        {"NETRC": "/nonexistent"},
    ],
    ids=str,
)
def test_what_a_service_on_this_machine_does_not_need_does_not_matter(
    command: Command, node_id: str, environment: dict[str, str]
) -> None:
    for arguments in (["is-blocked", node_id], ["list"], ["--help"]):
        done = command.run(*arguments, **environment)
        assert done.returncode == (1 if "is-blocked" in arguments else 0), done.stderr
    assert command.run("block", node_id, "-r", "Disk", **environment).returncode == 0
    assert command.run("is-blocked", node_id, **environment).returncode == 0


def test_a_user_without_a_home_directory_has_no_contexts(
    command: Command, node_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container with a user that nothing knows."""
    monkeypatch.setattr(Path, "home", lambda: Path("~x").expanduser())
    without = {"HOME": "", "XDG_CONFIG_HOME": ""}
    assert command.run("is-blocked", node_id, **without).returncode == 1
    done = command.run("config", "set", "lab", "url", "http://lab:8224", **without)
    assert (done.returncode, done.stderr) == (
        2,
        "Error: This user has no home directory: set HOME or XDG_CONFIG_HOME.\n",
    )


def broken(*_: object, **__: object) -> Never:
    raise OverflowError("timestamp out of range\x1b[31m")


@pytest.mark.parametrize(
    ("place", "arguments"),
    [
        ("blocklist.client.client.BlocklistClient.get", "is-blocked n1"),
        ("blocklist.cli.environment.connect", "is-blocked n1"),
        ("blocklist.cli.environment.take_context", "is-blocked n1"),
        ("blocklist.cli.main.command_tree", "is-blocked n1"),
        ("blocklist.model.text.prepare_streams", "is-blocked n1"),
        ("blocklist.client.client.BlocklistClient.listing", "list"),
        ("blocklist.client.client.BlocklistClient.unblock_node", "unblock n1"),
        ("blocklist.client.client.BlocklistClient.block_nodes", "block n1 -r Disk --forever"),
        ("blocklist.cli.environment.hand_over_context", "manager exec"),
    ],
)
def test_a_fault_of_the_command_is_one_sentence_and_no_answer(
    command: Command, monkeypatch: pytest.MonkeyPatch, place: str, arguments: str
) -> None:
    for name in {place, place.replace("environment.connect", "read.connect").replace("environment.hand", "admin.hand")}:
        monkeypatch.setattr(name, broken)
    done = run(*arguments.split(), env=command.env)
    assert (done.returncode, done.stdout) == (3, "")
    *before, sentence = done.stderr.splitlines()
    assert sentence.startswith(
        "Error: this command has failed by a fault of its own. Please report it: OverflowError: "
    )
    assert "test_command_in_scripts.py:" in sentence
    assert "\x1b" not in sentence
    changes = arguments.startswith(("block", "unblock"))
    assert before == (["The change may have been made: see `blocklist list`. Repeating the command is safe."] * changes)


@pytest.mark.parametrize("arguments", ["is-blocked {}", "unblock {}", "get {}", "block {} -r Disk", "list"])
def test_a_url_with_a_path_that_the_service_does_not_have_is_not_its_url(
    command: Command, node_id: str, arguments: str
) -> None:
    command.stdout_of("block", node_id, "-r", "Disk")
    url = command.env["BLOCKLIST_URL"] + "/blocklist"
    done = command.run(*arguments.format(node_id).split(), BLOCKLIST_URL=url)
    assert (done.returncode, done.stdout) == (3, "")
    assert f"{url} is not the URL of a blocklist service" in done.stderr
    assert command.run("is-blocked", node_id).returncode == 0


@pytest.mark.parametrize("question", ["is-blocked", "list", "block -r Disk", "--version", "--help"])
def test_a_closed_stdout_cannot_be_written(command: Command, node_id: str, question: str) -> None:
    node = "" if question in {"list", "--version", "--help"} else node_id
    done = shell(command, f"blocklist {question} {node} >&-")
    first, *more = done.stderr.splitlines()
    assert (done.returncode, first) == (3, "Error: the output cannot be written: Bad file descriptor.")
    assert bool(more) == question.startswith("block")  # that it may have been made


@pytest.mark.parametrize("arguments", ["is-blocked n1", "block n1 -r Disk", "list"])
def test_a_closed_stderr_does_not_change_the_exit_code(command: Command, arguments: str) -> None:
    away = f"BLOCKLIST_URL=http://127.0.0.1:{free_port()}"
    assert shell(command, f"{away} blocklist {arguments} 2>&-").returncode == 3
    assert shell(command, f"{away} blocklist {arguments} >&- 2>&-").returncode == 3
    assert shell(command, f"{away} blocklist {arguments} <&- >&- 2>&-").returncode == 3


def test_a_closed_stdin_names_no_node(command: Command) -> None:
    done = shell(command, "blocklist block - -r Disk <&-")
    assert done.returncode == 2
    assert "No node is given" in done.stderr


def test_an_interrupted_change_may_have_been_made(
    binaries: Path, listener_service: ServiceProcess, listener_client: httpx.Client
) -> None:
    register(listener_client, "never-applies")
    with Command(binaries, listener_service.url).running("block", "n1", "-r", "Disk", "--wait", "60s") as process:
        wait_until(lambda: listener_client.get("/blocklist/nodes/n1").status_code == 200)
        code, stderr = interrupt(process)
    assert code == 130
    assert "The change may have been made" in stderr


def test_a_change_without_a_response_may_have_been_made(
    command: Command, service: ServiceProcess, node_id: str
) -> None:
    with service.paused():
        done = command.run("block", node_id, "-r", "Disk", "--forever", BLOCKLIST_TIMEOUT="500ms")
        dry = command.run("block", node_id, "-r", "Disk", "--forever", "--dry-run", BLOCKLIST_TIMEOUT="500ms")
        # It asks for the time of the service first, and sends no change.
        relative = command.run("block", node_id, "-r", "Disk", "-d", "1h", BLOCKLIST_TIMEOUT="500ms")
    assert (done.returncode, dry.returncode, relative.returncode) == (3, 3, 3)
    assert "may have been made" not in relative.stderr
    assert "The change may have been made" in done.stderr
    assert "may have been made" not in dry.stderr
    away = command.run("block", node_id, "-r", "Disk", BLOCKLIST_URL=f"http://127.0.0.1:{free_port()}")
    assert "may have been made" not in away.stderr


@pytest.mark.parametrize("sent", [0, 30, 150])
def test_a_response_byte_by_byte_does_not_hold_the_command(command: Command, sent: int) -> None:
    """Each byte comes in time, but the last one after days, in the head or in the body."""
    whole = http_response(b"", "200 OK", *SERVICE_HEADERS, length=10**6)
    with fake_server(respond_endlessly(whole[:sent], b"x", 0.05)) as server:
        own = {"BLOCKLIST_URL": server.url, "BLOCKLIST_TIMEOUT": "500ms"}
        asked = command.run("is-blocked", "n1", **own)
        changed = command.run("block", "n1", "-r", "Disk", "--forever", **own)
    assert (asked.returncode, changed.returncode) == (3, 3)
    assert "is out of reach: the response is not complete after 1s" in asked.stderr
    assert "The change may have been made" in changed.stderr


@pytest.mark.parametrize(
    ("answer", "passed_on"),
    [
        (http_response(b"<html>", "504 Gateway Time-out", "Content-Type: text/html"), True),
        (http_response(b"", "201 Created", "Content-Type: application/json", *SERVICE_HEADERS), True),
        (http_response(b"{}", "200 OK", "Content-Type: application/json", *SERVICE_HEADERS), True),
        (http_response(b"<html>", "200 OK", "Content-Type: text/html"), True),
        (http_response(b"<html>", "403 Forbidden", "Content-Type: text/html"), False),
    ],
    ids=["gateway timeout", "cut off", "another body", "log-in page", "refused by a gateway"],
)
def test_an_odd_response_to_a_change_does_not_say_that_nothing_was_changed(
    command: Command, answer: bytes, passed_on: bool
) -> None:
    """A gateway has lost the service's response, or cut it off."""
    with fake_server(respond(answer)) as server:
        done = command.run("block", "n1", "-r", "Disk", "--forever", "-o", "json", BLOCKLIST_URL=server.url)
    assert done.returncode == 3
    assert ("The change may have been made" in done.stderr) is passed_on
    [node] = json.loads(done.stdout)["nodes"]
    assert node["result"] == ("unknown" if passed_on else "not-changed")


def test_without_the_count_in_the_response_nobody_is_known_to_have_applied_a_block(command: Command) -> None:
    """A gateway passes on headers from a list of its own."""
    node = {"id": "n1", "status": 201, "startTimestamp": "1", "endTimestamp": "9223372036854775807"}
    body = {"n1": {**block(), **node, "taskManagers": []}}
    answer = http_response(json.dumps(body).encode(), "200 OK", "Content-Type: application/json", *SERVICE_HEADERS)
    with fake_server(respond(answer)) as server:
        done = command.run("block", "n1", "-r", "Disk", "--forever", "--wait", "1s", BLOCKLIST_URL=server.url)
    assert done.returncode == 3
    assert "it is not known by whom that is applied" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["get", "-"], "this command takes one node, not standard input"),
        (["is-blocked"], "name at least one node"),
        (["drain", "n1", "-l", "rack=r1"], "not both"),
        (["block", "n1", "-r", "x", "--until", "2h"], "give it as -d 2h"),
        (["list", "--at", "2026-01-01T00:00:00Z", "-w"], "give only one of --at and --watch"),
        (["block", "n1", "-r", " "], "characters that are not all spaces"),
        (["block", "n1", "-r", "x", "--force-reason", " "], "characters that are not all spaces"),
        (["block", "n1", "2h", "-r", "x"], "2h looks like a duration: give it as -d 2h"),
        (["drain", "n1", "--force", "7d"], "7d looks like a duration"),
        (["extend", "n1", "-d", "2h", "--force"], "say why with --force-reason"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(command: Command, arguments: list[str], message: str) -> None:
    done = command.run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_an_address_in_brackets_is_the_same_node_in_every_command(command: Command) -> None:
    command.stdout_of("block", "[fe80::77]", "-r", "Disk")
    for question in ("is-blocked", "get", "status", "history"):
        command.stdout_of(question, "[fe80::77]")
    command.stdout_of("unblock", "[FE80::77]")
    assert command.run("is-blocked", "[fe80::77]").returncode == 1


@pytest.mark.parametrize("selector", ["rack=nowhere", "rak=r1", "rack=(", ""])
def test_a_selector_that_selects_nothing_does_not_answer_the_question(command: Command, selector: str) -> None:
    done = command.run("is-blocked", "-l", selector)
    assert (done.returncode, done.stdout) == (2 if not selector else 3, "")
    assert done.stderr


def test_claims_of_several_nodes_name_those_that_are_not_blocked(command: Command, node_id: str) -> None:
    command.stdout_of("block", node_id, "-r", "Disk")
    done = command.run("claims", node_id, f"{node_id}-free", "-o", "name")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{node_id}\n", f"{node_id}-free not blocked\n")
    for several in ([f"{node_id}-free"], [f"{node_id}-free", f"{node_id}-free2"]):
        assert command.run("claims", *several).returncode == 1


# What is left to do: a command that ends early, or finds nothing, says what was not done and what there is.


def test_a_node_that_no_listener_knows_is_not_drained(
    binaries: Path, fresh: ServiceProcess, fresh_client: httpx.Client
) -> None:
    command = Command(binaries, fresh.url)
    report_labels(fresh_client, {"r12n01": {"rack": "r12"}}, "jm")
    register(fresh_client, "etl", leaseSeconds=600)
    heartbeat(fresh_client, "etl", ackedRevision=0, taskManagers={}, runningTasks={})
    with command.running("drain", "r12n1", "--timeout", "60s") as running:
        wait_until(lambda: "r12n1" in fresh_client.get("/blocklist").json())
        for name in ("etl", "jm"):
            heartbeat(fresh_client, name, ackedRevision=1)
        output, _ = running.communicate(timeout=TIMEOUT)
    assert running.returncode == 1
    assert output.splitlines()[-3:] == [
        "0 of 1 node drained. Still held:",
        "  r12n1  the node is not known, so what runs there is unknown; did you mean r12n01?",
        "1 node stays blocked; to end that: blocklist unblock r12n1",
    ]
    # Of a node that was blocked before, it cannot be known whether a job that has ended reported it.
    done = command.run("drain", "r12n1", "--timeout", "60s")
    assert (done.returncode, done.stdout.splitlines()[-1].startswith("1 node drained")) == (0, True)
    assert done.stderr.splitlines()[-1].endswith("did you mean r12n01? If the name is right, nothing runs there.")


def test_an_empty_selection_says_how_many_are_blocked(command: Command, node_id: str) -> None:
    command.stdout_of("block", node_id, "-r", "disk")
    done = command.run("list", "--owner", f"{node_id}-nobody")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("No blocked node matches; ")
    assert done.stderr.endswith(" blocked in all.\n")


def test_a_misspelt_label_unblocks_nothing_and_has_no_hint_for_another_command(
    binaries: Path, fresh: ServiceProcess, fresh_client: httpx.Client
) -> None:
    report_labels(fresh_client, {"n1": {"rack": "r21"}})
    put(fresh_client, "n1")
    done = Command(binaries, fresh.url).run("unblock", "-l", "rak=r21")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: No node has the label rak; did you mean rack?\nNothing was changed.\n"


def test_an_output_that_fails_does_not_hide_what_is_left(command: Command, node_id: str) -> None:
    nodes = [f"{node_id}-{place}" for place in "abc"]
    command.stdout_of("block", *nodes, "-r", "disk")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            ["blocklist", "unblock", *nodes],
            env=command.env,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    assert done.returncode == 3
    assert f"Not unblocked: {nodes[1]}, {nodes[2]}.\n" in done.stderr
    assert [command.run("is-blocked", node).returncode for node in nodes] == [1, 0, 0]


@pytest.mark.parametrize("options", ["", "-o json", "--dry-run"])
def test_an_output_that_fails_does_not_hide_that_a_change_was_made(
    command: Command, node_id: str, options: str
) -> None:
    done = shell(command, f"blocklist block {node_id} -r disk {options} >/dev/full")
    assert done.returncode == 3
    assert done.stderr.startswith("Error: the output cannot be written: No space left on device.\n")
    assert ("The change may have been made: see `blocklist list`." in done.stderr) == (options != "--dry-run")


def test_a_name_in_another_case_is_the_same_node(command: Command, node_id: str) -> None:
    command.stdout_of("block", node_id, node_id.upper(), "-r", "disk")
    assert command.stdout_of("unblock", node_id, f"{node_id.upper()}.") == f"{node_id} unblocked\n"


def test_a_reason_that_is_not_utf_8_is_called_so(command: Command, node_id: str) -> None:
    done = command.run("block", node_id, "-r", "L\udcfcfter")
    assert (done.returncode, "The text is not UTF-8." in done.stderr) == (2, True)
    done = command.run("block", node_id, "-r", "a\x1bb")
    assert (done.returncode, "Control characters are not allowed." in done.stderr) == (2, True)


def test_an_answer_of_the_proxy_of_the_environment_is_not_laid_to_the_service(command: Command) -> None:
    for status in ("200 OK", "403 Forbidden", "302 Found"):
        with fake_server(http_response(b"<html>", status)) as proxy:
            done = command.run("is-blocked", "n1", BLOCKLIST_URL=AWAY, HTTP_PROXY=proxy.url)
        named = f"The request went to the proxy {proxy.url.removeprefix('http://')} of the environment: see NO_PROXY.\n"
        assert (done.returncode, named in done.stderr) == (3, True), done.stderr


def test_a_service_that_refuses_a_connection_is_no_server_in_front_of_it(command: Command) -> None:
    problem = b'{"title": "Service Unavailable", "detail": "Too many connections; try again later."}'
    headers = "Content-Type: application/problem+json", "Blocklist-Version: 0.1.0"
    with fake_server(http_response(problem, "503 Service Unavailable", *headers)) as server:
        done = command.run("is-blocked", "n1", BLOCKLIST_URL=server.url)
    assert (done.returncode, "Too many connections; try again later." in done.stderr) == (3, True)


def test_ctrl_c_while_a_token_is_created_says_that_it_may_exist(binaries: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = Command(binaries, f"http://127.0.0.1:{server.getsockname()[1]}")
        with command.running("token", "create", "anna", "--role", "reader") as running:
            connection, _ = server.accept()
            with connection:
                connection.recv(1)
                code, stderr = interrupt(running)
    assert code == 130
    assert "A token of anna may have been created, and nobody has its text" in stderr


def test_a_refused_drain_says_that_the_node_stays_blocked(
    binaries: Path, fresh: ServiceProcess, fresh_client: httpx.Client
) -> None:
    register(fresh_client, "etl")
    with Command(binaries, fresh.url).running("drain", "n1", "--timeout", "60s") as running:
        assert running.stdout is not None
        running.stdout.readline()
        revision = int(fresh_client.get("/blocklist").headers["blocklist-revision"])
        heartbeat(fresh_client, "etl", ackedRevision=revision, taskManagers={"etl:1": "n1"}, refused={"n1": "last"})
        output, _ = running.communicate(timeout=TIMEOUT)
    assert running.returncode == 1
    assert output.splitlines()[-1] == "1 node stays blocked; to end that: blocklist unblock n1"


# A machine whose clock is wrong: blocks end by the clock of the service, so the command counts by that one.

HOUR: Final = 3_600_000
SKEWED: Final = """
import sys, time
clock, offset = time.time_ns, int(sys.argv.pop(1)) * 1_000_000
time.time_ns = lambda: clock() + offset
from blocklist.cli.__main__ import main
sys.exit(main())
"""


def run_skewed(command: Command, offset: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command on a machine whose clock is ahead by `offset` milliseconds."""
    return subprocess.run(
        [sys.executable, "-P", "-c", SKEWED, str(offset), *arguments],
        env=command.env | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


@pytest.mark.parametrize(("offset", "word"), [(-HOUR, "behind"), (HOUR, "ahead of")])
def test_a_duration_counts_by_the_clock_of_the_service(
    binaries: Path, fresh: ServiceProcess, fresh_client: httpx.Client, offset: int, word: str
) -> None:
    command = Command(binaries, fresh.url)
    before = now_ms()
    done = run_skewed(command, offset, "block", "n1", "-r", "disk", "-d", "30m")
    assert (done.returncode, "blocked until" in done.stdout) == (0, True), done.stderr
    assert f" {word} the service's." in done.stderr
    end = int(fresh_client.get("/blocklist/nodes/n1").json()["endTimestamp"])
    assert before + HOUR // 2 - 5_000 <= end <= now_ms() + HOUR // 2 + 5_000
    for line in (["list"], ["claims"]):
        shown = run_skewed(command, offset, *line).stdout.splitlines()[1].split()
        remaining = shown[3] if line == ["claims"] else shown[2]
        assert remaining.startswith(("2", "30m")), remaining
    # 30m in the second of the block, 29m59s after it.
    assert run_skewed(command, offset, "is-blocked", "n1").stdout.partition("(in ")[2].startswith(("2", "30m"))
    assert run_skewed(command, offset, "extend", "n1", "-d", "2h").returncode == 0
    assert int(fresh_client.get("/blocklist/nodes/n1").json()["endTimestamp"]) <= now_ms() + 2 * HOUR + 5_000


def test_a_small_difference_is_none(binaries: Path, fresh: ServiceProcess, fresh_client: httpx.Client) -> None:
    put(fresh_client, "n1")
    done = run_skewed(Command(binaries, fresh.url), 2_000, "block", "n2", "-r", "disk", "-d", "30m")
    assert (done.returncode, done.stderr) == (0, "")
