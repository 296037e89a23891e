"""`python -m demo.yarn`: a ResourceManager, three NodeManagers, the service and its manager; containers follow.

Needs Maven the first time.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from demo.manager_demo import WORK_SECONDS, block_and_free, managed, run, steady_work
from tests.yarn.cluster import YarnCluster
from tests.yarn.jars import yarn_classpath

NODES: Final = ("w1.yarn.test", "w2.yarn.test", "w3.yarn.test")
WELCOME: Final = """\
A ResourceManager with three NodeManagers, a blocklist service and its manager, all on this machine, and containers that
come and go. One node will be blocked, another evacuated, and both freed again. Ctrl-C stops and removes everything.
The first time, Maven downloads 66 MB.
"""


def _demo(folder: Path, stack: ExitStack, seconds: int) -> None:
    print(WELCOME, flush=True)
    (folder / "yarn").mkdir()
    cluster = stack.enter_context(YarnCluster(folder / "yarn", yarn_classpath()))
    options = ["--resource-manager", cluster.url, "--user", "root", "--every", "1"]
    url, client = stack.enter_context(managed(folder, "yarn", *options, nodes=len(NODES)))
    print(f"The page: {url}/\nThe ResourceManager: {cluster.url}/cluster/nodes\n")
    command, rest = f"sleep {WORK_SECONDS}", cluster.rest()
    stack.enter_context(steady_work(lambda _: rest.submit(command)))
    block_and_free(client, NODES, rest.containers, seconds, "containers")


if __name__ == "__main__":
    sys.exit(run("demo.yarn", "Containers that follow the blocklist.", _demo))
