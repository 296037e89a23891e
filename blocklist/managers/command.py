"""Run an external command with a timeout and a limit on its output; and end what runs when the process is to stop."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Final, TypeVar

from blocklist.managers.plan import ManagerError

DEFAULT_MAX_OUTPUT: Final = 64 * 1024
"""Bytes of each output stream that are stored; the rest is read and dropped."""
_MAX_QUOTED: Final = 300
"""Characters of a command, and of its output, in an error message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandOutput:
    """The output of a command that succeeded; `complete` is false if the end of stdout was dropped."""

    stdout: str
    stderr: str
    complete: bool


def run(
    command: Sequence[str],
    *,
    timeout: float,
    stdin: bytes = b"",
    max_output: int = DEFAULT_MAX_OUTPUT,
    variables: Mapping[str, str] | None = None,
    secret: bool = False,
) -> CommandOutput:
    """Run the command in its own process group until it ends; after `timeout` seconds the whole group is killed.

    `max_output` limits stdout, in bytes. `variables` are added to the environment. Raises ManagerError, with an excerpt
    of the output (but not of stdout if that is `secret`), if the command cannot be started, is killed, or ends with an
    exit code other than 0.
    """
    # A file, not a pipe: a command that does not read its input must not block this process.
    with tempfile.TemporaryFile() as input_file:
        input_file.write(stdin)
        input_file.seek(0)
        try:
            process = subprocess.Popen(
                command,
                stdin=input_file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, **variables} if variables else None,
            )
        except OSError as error:
            raise ManagerError(f"{command[0]} cannot be run: {error.strerror or error}.") from error
    with process:
        out, err = _PipeReader(process.stdout, max_output), _PipeReader(process.stderr, DEFAULT_MAX_OUTPUT)
        killed = _wait_or_kill(process, timeout)
        output = CommandOutput(stdout=out.text(), stderr=err.text(), complete=out.complete)
    quoted = _quoted_output(output, secret=secret)
    if killed:
        raise ManagerError(f"{_quoted_command(command)} did not end within {timeout:g} s and was killed.{quoted}")
    if process.returncode:
        raise ManagerError(f"{_quoted_command(command)} failed with exit code {process.returncode}.{quoted}")
    return output


class _PipeReader:
    """Reads a pipe to its end in a thread, so that the command never blocks, and stores its first bytes."""

    def __init__(self, pipe: IO[bytes] | None, max_bytes: int) -> None:
        self._pipe = pipe
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self.complete = True
        self._thread = threading.Thread(target=self._run, name="blocklist-command", daemon=True)
        self._thread.start()

    def text(self) -> str:
        # A child that outlives the command may hold the pipe open: do not wait for it.
        self._thread.join(1)
        return bytes(self._buffer).decode(errors="replace")

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while self._pipe is not None and (chunk := os.read(self._pipe.fileno(), 65536)):
                room = self._max_bytes - len(self._buffer)
                self._buffer += chunk[:room]
                self.complete = self.complete and len(chunk) <= room


def _wait_or_kill(process: subprocess.Popen[bytes], timeout: float) -> bool:
    """Wait until the process ends; whether it exceeded the timeout and was killed."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout)
        return False
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return True


def _quoted_command(command: Sequence[str]) -> str:
    text = shlex.join(command)
    return text if len(text) <= _MAX_QUOTED else text[:_MAX_QUOTED] + "…"


def _quoted_output(output: CommandOutput, *, secret: bool) -> str:
    text = " ".join((output.stderr.strip() or ("" if secret else output.stdout.strip())).split())
    return f" Output: {text[:_MAX_QUOTED]}" if text else ""


# Stopping: the request to stop this process; what waits for it, and what is called then.

T = TypeVar("T")
_CHECK_SECONDS: Final = 0.1
"""How soon a stop is obeyed. A signal handler may run in the waiting thread, so it cannot wait on a lock."""


class StoppedError(ManagerError):
    """The manager is to stop."""


class Stopping:
    """Set once, by any thread or signal handler; threads wait for it. What `calls` registers is called then.

    Reentrant: a signal may arrive in the thread that registers.
    """

    def __init__(self) -> None:
        self._set = threading.Event()
        self._lock = threading.RLock()
        self._calls: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        return self._set.is_set()

    def wait(self, seconds: float) -> bool:
        """Whether it was set within this time."""
        return self._set.wait(seconds)

    def set(self) -> None:
        """Stop for good."""
        self._set.set()
        self.interrupt()

    def interrupt(self) -> None:
        """Call what is registered, without stopping for good."""
        with self._lock:
            for call in self._calls:
                call()

    @contextmanager
    def calls(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call `stop` once it is set; at once if it is set already."""
        with self._lock:
            self._calls.append(stop)
        if self.is_set():
            stop()
        try:
            yield
        finally:
            with self._lock:
                self._calls.remove(stop)

    def check(self) -> None:
        """Raises StoppedError if it is set."""
        self.sleep(0)

    def sleep(self, seconds: float) -> None:
        """Raises StoppedError as soon as it is set."""
        if self.wait(seconds):
            raise StoppedError("The manager is stopping.")

    def call(self, function: Callable[[], T], seconds: float, abandon: Callable[[], None] = lambda: None) -> T:
        """The result of a function that may block, such as a name look-up, from a thread of its own.

        After `seconds`, or when this is set, `abandon` is called, and TimeoutError or StoppedError raised; the thread
        ends on its own, or with the process.
        """
        future = Future[T]()
        threading.Thread(target=_run, args=(function, future), name="blocklist-call", daemon=True).start()
        deadline = time.monotonic() + seconds
        while not wait([future], _CHECK_SECONDS).done:
            if self.is_set():
                abandon()
                raise StoppedError("The manager is stopping.")
            if time.monotonic() >= deadline:
                abandon()
                raise TimeoutError(f"no complete response within {seconds:g} s")
        return future.result()


def _run(function: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
