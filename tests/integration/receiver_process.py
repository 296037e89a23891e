"""A receiver in its own process, which tests can kill: `python -m tests.integration.receiver_process PORT SESSION`.

For each line on its standard input it prints its state as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.integration.process import ROOT
from tests.integration.receiver import acknowledges, serving


class ReceiverProcess:
    """The test's handle of the process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.url = self._line().strip()

    def knows(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        said: dict[str, Any] = json.loads(self._line())
        assert said["faults"] == []
        return said

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._process.kill()
        self._process.wait(60)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def receiver_process(port: int, session: str) -> Iterator[ReceiverProcess]:
    """Start one; kill it on leaving."""
    command = [sys.executable, "-m", "tests.integration.receiver_process", str(port), session]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        receiver = ReceiverProcess(process)
        try:
            yield receiver
        finally:
            receiver.kill()


def main() -> None:
    with serving(acknowledges, port=int(sys.argv[1]), session=sys.argv[2]) as receiver:
        print(receiver.url, flush=True)  # noqa: T201
        for _ in sys.stdin:
            with receiver.lock:
                said = {
                    "nodes": receiver.nodes,
                    "revision": receiver.revision,
                    "snapshots": [push.body["snapshot"] for push in receiver.applied],
                    "faults": receiver.faults,
                }
            print(json.dumps(said), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
