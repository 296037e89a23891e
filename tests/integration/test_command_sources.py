"""Which service the command uses, and where that is from: no message leads to the wrong place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.command import Command
from tests.integration.process import ServiceProcess


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
