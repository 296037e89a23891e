"""The contexts of the command: the service that is changed is the one that the operator chose, and is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.command import Command
from tests.integration.process import ServiceProcess


def test_a_change_prints_the_context_and_a_read_does_not(
    configured: Command, service: ServiceProcess, node_id: str
) -> None:
    done = configured.run("block", node_id, "-r", "disk")
    assert (done.returncode, done.stderr) == (0, f"Context lab: {service.url}\n")
    assert configured.run("is-blocked", node_id).stderr == ""


def test_the_context_is_chosen_by_use_by_option_and_by_variable(configured: Command, node_id: str) -> None:
    assert configured.run("block", node_id, "-r", "disk", "--context", "prod").returncode == 3
    assert configured.run("--context=prod", "list").returncode == 3
    assert configured.run("list", BLOCKLIST_CONTEXT="prod").returncode == 3
    assert configured.stdout_of("config", "use", "prod").startswith("Current context: prod, http://")
    assert configured.run("list").returncode == 3
    assert [line.split()[:2] for line in configured.stdout_of("config", "list", "--no-headers").splitlines()] == [
        ["-", "lab"],
        ["*", "prod"],
    ]
    configured.stdout_of("list", "--context", "lab")


def test_a_broken_file_does_not_keep_anybody_from_blocking_with_a_url(
    configured: Command, service: ServiceProcess, node_id: str
) -> None:
    file = Path(configured.env["XDG_CONFIG_HOME"]) / "blocklist" / "config.toml"
    file.write_text("current = ")
    done = configured.run("block", node_id, "-r", "disk", BLOCKLIST_URL=service.url)
    assert (done.returncode, f"No context: {service.url} (BLOCKLIST_URL). {file} is invalid: " in done.stderr) == (
        0,
        True,
    )
    done = configured.run("unblock", node_id)
    assert (done.returncode, f"{file} is invalid: " in done.stderr) == (2, True)


def test_a_file_that_cannot_be_read_is_named_with_the_reason(configured: Command) -> None:
    file = Path(configured.env["XDG_CONFIG_HOME"]) / "blocklist" / "config.toml"
    file.write_bytes(b"\xff")
    assert configured.run("list").stderr == f"Error: {file} cannot be read: it is not UTF-8 text.\n"
    file.unlink()
    file.mkdir()
    for arguments in (["list"], ["config", "set", "lab", "url", "http://127.0.0.1:1"]):
        done = configured.run(*arguments)
        assert (done.returncode, done.stderr) == (2, f"Error: {file} cannot be read: Is a directory.\n")


def test_an_invalid_url_is_refused_with_its_source(configured: Command) -> None:
    file = Path(configured.env["XDG_CONFIG_HOME"]) / "blocklist" / "config.toml"
    file.write_text('current = "lab"\n[contexts.lab]\nurl = "ftp://x"\n')
    done = configured.run("list")
    assert done.returncode == 2
    assert (
        "'ftp://x' is not the URL of a service: give http://host:port. The URL is that of the context lab"
        in done.stderr
    )


def test_an_unknown_context_is_a_configuration_error_that_names_the_others(configured: Command) -> None:
    done = configured.run("list", "--context", "pord")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there are lab, prod" in done.stderr


def test_a_url_in_the_environment_precedes_the_current_context_and_is_printed(
    configured: Command, service: ServiceProcess, node_id: str
) -> None:
    configured.stdout_of("config", "use", "prod")
    done = configured.run("block", node_id, "-r", "disk", BLOCKLIST_URL=service.url)
    assert (done.returncode, done.stderr) == (0, f"No context: {service.url} (BLOCKLIST_URL)\n")
    done = configured.run("list", BLOCKLIST_URL=service.url, BLOCKLIST_CONTEXT="prod")
    assert (done.returncode, "unset one of them" in done.stderr) == (2, True)


@pytest.mark.parametrize("text", ["[", 'current = "x"', "[contexts.a]\nurl = 1", '[contexts.a]\nulr = "x"', "a = 1"])
def test_an_invalid_file_is_an_error_that_names_it(configured: Command, text: str) -> None:
    file = Path(configured.env["XDG_CONFIG_HOME"]) / "blocklist" / "config.toml"
    file.write_text(text)
    done = configured.run("list")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{file} is invalid" in done.stderr


@pytest.mark.parametrize(("key", "value"), [("url", "prod"), ("timeout", "soon"), ("token", "x")])
def test_a_value_that_cannot_be_used_is_not_stored(configured: Command, key: str, value: str) -> None:
    assert configured.run("config", "set", "lab", key, value).returncode == 2
    assert configured.run("config", "get", "lab", "timeout").returncode == 1


def test_extend_gives_a_later_end_and_keeps_the_rest(command: Command, node_id: str) -> None:
    command.stdout_of("block", node_id, "-r", "disk", "-d", "1h", "--evacuate")
    assert "(in 5h), evacuating its tasks" in command.stdout_of("extend", node_id, "-d", "5h")
    assert "already blocked until" in command.stdout_of("extend", node_id, "-d", "2h")
    done = command.run("extend", f"{node_id}-free", "-d", "5h")
    assert (done.returncode, done.stdout) == (1, f"{node_id}-free not blocked\n")
    assert json.loads(command.stdout_of("get", node_id, "-o", "json"))["cause"] == "disk"


def test_several_nodes_are_asked_at_once(command: Command, node_id: str) -> None:
    command.stdout_of("block", f"{node_id}-[1-2]", "-r", "disk")
    assert command.run("is-blocked", f"{node_id}-[1-2]").returncode == 0
    assert command.run("is-blocked", f"{node_id}-[1-3]").returncode == 1
    assert len(command.stdout_of("history", f"{node_id}-[1-2]", "--since", "15m", "--no-headers").splitlines()) == 2
    assert len(command.stdout_of("status", f"{node_id}-[1-2]", "--no-headers").splitlines()) == 2
    assert command.stdout_of("history", node_id, "--from", "-1h") == ""
    assert len(command.stdout_of("claims", f"{node_id}-[1-2]", "--no-headers").splitlines()) == 2


def test_the_list_is_filtered_and_sorted(command: Command, node_id: str) -> None:
    command.stdout_of("block", f"{node_id}-a", "-r", f"Disk {node_id}x", "-d", "3h")
    command.stdout_of("block", f"{node_id}-b", "-r", f"Fan {node_id}x", "-d", "1h", "--evacuate")
    mine = ("list", "-o", "name", "--reason", f"{node_id}X")
    assert command.stdout_of(*mine, "--sort", "expires").splitlines() == [f"{node_id}-b", f"{node_id}-a"]
    assert command.stdout_of(*mine, "--action", "mark") == f"{node_id}-a\n"
    assert command.stdout_of(*mine, "--owner", "anon*").splitlines() == [f"{node_id}-a", f"{node_id}-b"]
    assert command.stdout_of(*mine, "--by", "nobody") == ""


def test_config_check_shows_the_context_and_what_it_sets(
    configured: Command, service: ServiceProcess, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret-of-lab")
    configured.stdout_of("config", "set", "lab", "token_file", str(tmp_path / "token"))
    lines = [line.split(maxsplit=1) for line in configured.run("config", "check").stdout.splitlines()]
    shown = {line[0]: line[1] for line in lines}
    assert shown["CONTEXT"] == "lab"
    assert shown["URL"] == f"{service.url} (context lab)"
    assert shown["TOKEN"] == f"in the file {tmp_path / 'token'} (context lab)"


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("list --contxt prod", "--context"),
        ("unblock n1 --conext=prod", "--context"),
        ("config check --contex prod", "--context"),
        ("config --contxt prod check", "--context"),
        ("--contxt prod list", "--context"),
        ("list --ouput json", "--output"),
    ],
)
def test_the_hint_for_a_misspelt_option_names_the_one_that_was_meant(
    command: Command, arguments: str, meant: str
) -> None:
    done = command.run(*arguments.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"(Possible options: {meant})\n")


# Which service the command uses, and where that is from: no message leads to the wrong place.


def test_config_use_says_if_the_environment_still_decides(configured: Command, service: ServiceProcess) -> None:
    done = configured.run("config", "use", "prod", BLOCKLIST_URL=service.url)
    assert done.returncode == 0
    assert done.stderr == f"BLOCKLIST_URL is set, so commands still use {service.url}: unset it.\n"
    done = configured.run("config", "use", "prod", BLOCKLIST_CONTEXT="lab")
    assert done.stderr == "BLOCKLIST_CONTEXT is set, so commands still use the context lab: unset it.\n"
    assert configured.run("config", "use", "prod", BLOCKLIST_CONTEXT="prod").stderr == ""


@pytest.mark.parametrize(
    ("arguments", "env", "source"),
    [
        (["list", "--context", "prod"], {}, "The URL is that of the context prod (chosen by --context)."),
        (["list"], {"BLOCKLIST_CONTEXT": "prod"}, "The URL is that of the context prod (chosen by BLOCKLIST_CONTEXT)."),
        (["block", "n1", "-r", "x"], {"BLOCKLIST_URL": "http://127.0.0.1:9"}, "The URL is that of BLOCKLIST_URL."),
    ],
)
def test_a_service_out_of_reach_is_named_with_where_its_url_is_from(
    configured: Command, arguments: list[str], env: dict[str, str], source: str
) -> None:
    done = configured.run(*arguments, **env)
    assert (done.returncode, source in done.stderr.splitlines()) == (3, True), done.stderr


def test_the_current_context_and_the_default_url_are_named_as_sources(configured: Command, tmp_path: Path) -> None:
    configured.stdout_of("config", "use", "prod")
    done = configured.run("list")
    assert "The URL is that of the context prod (the current one; see blocklist config list)." in done.stderr
    other = tmp_path / "empty"
    assert "The URL is the default one: set BLOCKLIST_URL" in configured.run("list", XDG_CONFIG_HOME=str(other)).stderr


def test_a_missing_token_file_is_that_of_the_context(configured: Command, tmp_path: Path) -> None:
    missing = tmp_path / "missing.token"
    configured.stdout_of("config", "set", "lab", "token_file", str(missing))
    done = configured.run("list")
    assert done.returncode == 2
    assert done.stderr == f"Error: context lab: the token file {missing} cannot be read: No such file or directory.\n"
    done = configured.run("list", "--context", "prod", BLOCKLIST_TOKEN_FILE=str(missing))
    assert "token file" not in done.stderr, "--context replaces the token of the environment, too"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--context", "lab", "--context=prod"], "--context is given twice: choose one context."),
        (["list", "--context"], "--context needs the name of a context: see blocklist config list."),
        (["--context", "--no-headers", "list"], "--context needs the name of a context before --no-headers"),
    ],
)
def test_a_context_that_is_not_clear_is_not_guessed(configured: Command, arguments: list[str], message: str) -> None:
    done = configured.run(*arguments)
    assert (done.returncode, done.stdout, message in done.stderr) == (2, "", True), done.stderr


def test_credentials_in_a_url_are_refused_and_never_printed(configured: Command) -> None:
    for url in ("http://anna:SECRET@127.0.0.1:1", "http://SECRET@127.0.0.1:1"):
        for done in (
            configured.run("list", BLOCKLIST_URL=url),
            configured.run("block", "n1", "-r", "x", BLOCKLIST_URL=url),
            configured.run("config", "check", BLOCKLIST_URL=url),
            configured.run("config", "set", "lab", "url", url),
        ):
            assert (done.returncode, "leave them out" in done.stderr) == (2, True), done.stderr
            assert "SECRET" not in done.stdout + done.stderr
    # A file that was written by hand.
    file = Path(configured.env["XDG_CONFIG_HOME"]) / "blocklist" / "config.toml"
    file.write_text('current = "old"\n[contexts.old]\nurl = "http://anna:SECRET@127.0.0.1:1"\n')
    for arguments in (["list"], ["config", "list"], ["config", "get", "old", "url"], ["config", "use", "old"]):
        done = configured.run(*arguments)
        assert "SECRET" not in done.stdout + done.stderr, arguments


def test_a_mistyped_name_makes_no_context(configured: Command) -> None:
    done = configured.run("config", "set", "prdo", "timeout", "3s")
    assert (done.returncode, "Did you mean prod?" in done.stderr) == (2, True)
    done = configured.run("config", "set", "prdo", "url", "http://127.0.0.1:1")
    assert (done.returncode, done.stderr) == (0, "New context prdo. Did you mean prod?\n")
    assert configured.stdout_of("config", "delete", "prdo") == "Deleted context prdo\n"
    done = configured.run("config", "delete", "prdo")
    assert (done.returncode, "there are lab, prod" in done.stderr) == (2, True)


def test_without_the_current_context_none_is_chosen_silently(configured: Command) -> None:
    done = configured.run("config", "delete", "lab")
    assert (done.returncode, done.stderr) == (0, "There is no current context now: blocklist config use prod\n")
    assert configured.stdout_of("config", "list", "--no-headers").split()[:2] == ["-", "prod"]
