"""The command: in this process, where that cannot make a difference, or installed and in a process of its own."""

from __future__ import annotations

import io
import logging
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from blocklist.cli import __main__ as program
from blocklist.cli import environment as command_environment
from tests.integration.process import environment

TIMEOUT: Final = 60


class Command:
    """`blocklist` on the path, for the service at `url`; `settings` are the other BLOCKLIST_ variables."""

    def __init__(self, binaries: Path, url: str, **settings: str) -> None:
        self.env = environment(url=url, timeout="30s", **settings)
        self.env["PATH"] = f"{binaries}:{self.env['PATH']}"
        self.env.pop("NO_COLOR", None)

    def run(self, *arguments: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        """Run it in this process until it ends. A fault of the command fails the test."""
        done = run(*arguments, env=self.env | env, stdin=stdin)
        assert "fault of its own" not in done.stderr, done.stderr
        return done

    def stdout_of(self, *arguments: str, stdin: str = "", **env: str) -> str:
        """Its stdout. Fails unless the exit code is 0."""
        done = self.run(*arguments, stdin=stdin, **env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def beside(self, *arguments: str) -> Iterator[Future[subprocess.CompletedProcess[str]]]:
        """Run it in this process, beside the test, until its end."""
        with ThreadPoolExecutor(1) as thread:
            yield thread.submit(self.run, *arguments)

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run it in the background, with pipes."""
        # In a background job of a shell SIGINT is ignored, and child processes inherit that.
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "preexec_fn": _restore_sigint}
        with subprocess.Popen(["blocklist", *arguments], env=self.env, **pipes) as process:  # type: ignore[call-overload]
            try:
                yield process
            finally:
                process.kill()

    def on_terminal(self, *arguments: str, **env: str) -> str:
        """Its output if stdout is a terminal."""
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            ["blocklist", *arguments], env=self.env | {"TERM": "xterm"} | env, stdin=theirs, stdout=theirs
        ):
            os.close(theirs)
            text = b"".join(_read_all(ours))
        os.close(ours)
        return text.decode().replace("\r\n", "\n")


class _Written(io.TextIOWrapper):
    """A stream in memory that looks like a pipe in UTF-8."""

    def __init__(self, *, errors: str = "strict") -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors=errors)

    def text(self) -> str:
        """What was written."""
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


_running: Final = threading.Lock()
"""The streams and variables of this process belong to one command at a time."""


def run(
    *arguments: str, env: Mapping[str, str], stdin: str = "", main: Callable[[], int] = program.run_command
) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, with exactly these variables, as if it had pipes for standard streams."""
    streams = sys.argv, sys.stdin, sys.stdout, sys.stderr
    variables = dict(os.environ)
    out, err = _Written(), _Written(errors="backslashreplace")
    with _running:
        try:
            os.environ.clear()
            os.environ.update(env)
            sys.argv = ["blocklist", *arguments]
            sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
            sys.stdout, sys.stderr = out, err
            code = _exit_code(main)
        finally:
            sys.argv, sys.stdin, sys.stdout, sys.stderr = streams
            os.environ.clear()
            os.environ.update(variables)
            # What a process would take with it.
            command_environment._context_option.clear()
            logging.disable(logging.NOTSET)
    return subprocess.CompletedProcess(list(arguments), code, out.text(), err.text())


def _exit_code(main: Callable[[], int]) -> int:
    try:
        return main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)


def _restore_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Send SIGINT; return the exit code and stderr."""
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=TIMEOUT)
    return process.returncode, stderr


def install(folder: Path) -> Path:
    """Create `folder/bin` with the Python that runs the tests and the command that `make setup` installed beside it."""
    binaries = folder / "bin"
    binaries.mkdir()
    installed = {"python": sys.executable, "blocklist": Path(sys.executable).with_name("blocklist")}
    for name, target in installed.items():
        script = binaries / name
        script.write_text(f'#!/bin/sh\nexec "{target}" "$@"\n')
        script.chmod(0o755)
    return binaries


def _read_all(terminal: int) -> Iterator[bytes]:
    # On Linux reading fails after the other side was closed.
    with suppress(OSError):
        while data := os.read(terminal, 65536):
            yield data
