"""`python -m tests.kubernetes`: a cluster with three nodes until Ctrl-C; with `build` only builds it, and Helm."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.debian import MissingError
from tests.kubernetes.cluster import running_cluster
from tests.kubernetes.control_plane import require_control_plane
from tests.kubernetes.helm_program import require_helm
from tests.kubernetes.kubelets import running_kubelets


def main() -> int:
    """Exit code 1 if they cannot be built, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.kubernetes", description="A cluster of three nodes until Ctrl-C."
    )
    parser.add_argument("command", nargs="?", choices=["build"], help="only build it, and Helm")
    arguments = parser.parse_args()
    try:
        program = require_control_plane()
        if arguments.command == "build":
            print(f"{program}\n{require_helm()}")
            return 0
    except MissingError as error:
        print(f"{error}.", file=sys.stderr)
        return 1
    with (
        tempfile.TemporaryDirectory(prefix="blocklist-kubernetes-") as folder,
        running_cluster(program, Path(folder)) as cluster,
        running_kubelets(cluster) as kubelets,
        kubelets.nodes("worker-17", "worker-18", "worker-19"),
    ):
        print(f"export KUBECONFIG={cluster.admin_kubeconfig}\n{program.with_name('kubectl')} get nodes", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


if __name__ == "__main__":
    sys.exit(main())
