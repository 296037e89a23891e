"""Runs of `python -m app` that are forked from a process that has imported their modules.

A start of `python -m app` takes 1.8 s of CPU, of which 1.5 s are imports.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.integration.preloaded"])


class ForkedApp:
    """A running command, `serve` without arguments, with the methods of subprocess.Popen that tests need.

    It appends to the files `stdout` and `stderr`. `constants` replace those of the service: full name to value.
    """

    def __init__(
        self,
        folder: Path,
        env: Mapping[str, str],
        stderr: Path,
        *,
        stdout: Path = Path(os.devnull),
        arguments: Sequence[str] = (),
        constants: Mapping[str, object] | None = None,
    ) -> None:
        # A daemon process is ended with this one.
        self._process: ForkServerProcess = _CONTEXT.Process(
            target=_run, args=(folder, env, stdout, stderr, arguments, constants or {}), daemon=True
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired("a forked process", timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(
    folder: Path,
    env: Mapping[str, str],
    stdout: Path,
    stderr: Path,
    arguments: Sequence[str],
    constants: Mapping[str, object],
) -> None:
    """`python -m app …` in the forked process."""
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    _redirect(stdout, stderr)
    for name, value in constants.items():
        module, _, constant = name.rpartition(".")
        assert hasattr(import_module(module), constant), name
        setattr(import_module(module), constant, value)
    from app.cli import main

    try:
        sys.exit(main([*arguments]))
    finally:
        # A forked process ends without them, and without what its buffers hold.
        sys.stdout.flush()
        atexit._run_exitfuncs()


def _redirect(stdout: Path, stderr: Path) -> None:
    """Stdin is empty."""
    for target, path in enumerate((Path(os.devnull), stdout, stderr)):
        source = os.open(path, os.O_RDONLY if target == 0 else os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(source, target)
        os.close(source)
