"""A cluster in racks for the map, with a host in each state."""

from __future__ import annotations

import httpx

from tests.integration.bodies import EVACUATE, block
from tests.integration.labels import report_labels
from tests.integration.listeners import heartbeat, put, register


def host(rack: int, place: int) -> str:
    """`r03n12`."""
    return f"r{rack:02}n{place:02}"


def report_cluster(client: httpx.Client, racks: int, hosts: int) -> None:
    """A manager reports racks with this number of hosts each."""
    report_labels(
        client,
        {host(rack, place): {"rack": f"r{rack:02}"} for rack in range(1, racks + 1) for place in range(1, hosts + 1)},
        lease=600,
    )


def show_all_states(client: httpx.Client) -> dict[str, str]:
    """A host of the first racks in each state: the word of each of them. The cluster is reported before."""
    register(client, "etl-nightly", leaseSeconds=600)
    put(client, "r01n01", cause="Kernel upgrade")
    for name in ("r01n02", "r01n03", "r01n04", "r02n01"):
        revision = put(client, name, cause="DiskFull: /data is 98 % full", action=EVACUATE)
    running = {"etl:1": "r01n02", "etl:2": "r01n04", "etl:3": "r02n01"}
    heartbeat(
        client,
        "etl-nightly",
        ackedRevision=revision,
        taskManagers=running,
        runningTasks={"etl:1": 3, "etl:3": 1},
        refused={"r02n01": "its last host"},
    )
    # Only the manager has applied the last change.
    revision = put(client, "r02n03", cause="Fan")
    heartbeat(client, "racks", ackedRevision=revision, unschedulable={"r02n02": "DOWN"})
    return {
        "r01n01": "no new tasks",
        "r01n02": "evacuating",
        "r01n03": "evacuated",
        "r01n04": "unknown",
        "r02n01": "refused",
        "r02n02": "not ready",
        "r02n03": "not applied yet",
        "r02n04": "free",
    }


def block_rack(
    client: httpx.Client, rack: int, hosts: int, cause: str = "OPS-412: power feed B lost", **fields: object
) -> None:
    """Block all hosts of a rack."""
    nodes = {host(rack, place): block(cause=cause, **fields) for place in range(1, hosts + 1)}
    client.put("/blocklist/nodes", json=nodes).raise_for_status()
