"""`python -m demo.kubernetes`: a Kubernetes control plane, the service and its manager; pods keep off a blocked node.

The control plane is real; the kubelets are stood in for by this process, which runs the pods. Needs Go the first time.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx

from demo.manager_demo import WORK_SECONDS, block_and_free, managed, run, steady_work
from tests.kubernetes.cluster import running_cluster
from tests.kubernetes.control_plane import require_control_plane
from tests.kubernetes.kubelets import running_kubelets
from tests.kubernetes.pods import make_pod

NODES: Final = ("worker-17", "worker-18", "worker-19")
NAMESPACE: Final = "demo"
WELCOME: Final = """\
A Kubernetes control plane with three nodes, a blocklist service and its manager, all on this machine, and pods that
come and go. One node will be blocked, another evacuated, and both freed again. Ctrl-C stops and removes everything.
Building the control plane takes minutes the first time.
"""


def _demo(folder: Path, stack: ExitStack, seconds: int) -> None:
    print(WELCOME, flush=True)
    program = require_control_plane()
    (folder / "cluster").mkdir()
    cluster = stack.enter_context(running_cluster(program, folder / "cluster"))
    kubelets = stack.enter_context(running_kubelets(cluster))
    stack.enter_context(kubelets.nodes(*NODES))
    cluster.make_namespace(NAMESPACE)
    options = ["--kubeconfig", str(cluster.admin_kubeconfig), "--evict", "app=demo"]
    url, client = stack.enter_context(managed(folder, "kubernetes", *options, nodes=len(NODES)))
    print(f"The page: {url}/\nexport KUBECONFIG={cluster.admin_kubeconfig}\n{program.with_name('kubectl')} get nodes\n")
    # One for each thread.
    starting, watching = stack.enter_context(cluster.api()), stack.enter_context(cluster.api())
    stack.enter_context(steady_work(lambda number: _start_pod(starting, number)))
    block_and_free(client, NODES, lambda: _running(watching), seconds, "pods")


def _start_pod(api: httpx.Client, number: int) -> None:
    make_pod(api, NAMESPACE, f"pod-{number}", "sleep", str(WORK_SECONDS), labels={"app": "demo"})


def _running(api: httpx.Client) -> Counter[str]:
    on_nodes = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
    items = api.get(f"/api/v1/namespaces/{NAMESPACE}/pods", params=on_nodes).raise_for_status().json()["items"]
    return Counter(str(pod["spec"].get("nodeName", "pending")) for pod in items)


if __name__ == "__main__":
    sys.exit(run("demo.kubernetes", "Pods that follow the blocklist.", _demo))
