"""The objects of nodes as kubelets and a cloud provider write them."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

Json = dict[str, Any]

_CONDITIONS: Final = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")


def now(*, micro: bool = False) -> str:
    """The time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def node_object(name: str, network: int, zone: str, cpu: str, labels: Mapping[str, str]) -> Json:
    """A node that is Ready, with addresses of each type, in the network 127.0.`network`.0/24."""
    amounts = {"cpu": cpu, "memory": "8Gi", "pods": "110", "ephemeral-storage": "50Gi"}
    known = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "m5.xlarge",
        "topology.kubernetes.io/region": zone[:-2],
        "topology.kubernetes.io/zone": zone,
    }
    addresses = {
        "InternalIP": f"127.0.{network}.1",
        "Hostname": name,
        "InternalDNS": f"{name}.{zone}.example",
        "ExternalIP": f"203.0.113.{network}",
    }
    return {
        "metadata": {"name": name, "labels": known | dict(labels)},
        "spec": {"providerID": f"example:///{zone}/i-{network:05}"},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [{"type": kind, "address": address} for kind, address in addresses.items()],
            "conditions": ready_conditions(),
        },
    }


def ready_conditions() -> list[Json]:
    at = now()
    return [
        {
            "type": each,
            "status": str(each == "Ready"),
            "reason": "Kubelet",
            "lastHeartbeatTime": at,
            "lastTransitionTime": at,
        }
        for each in _CONDITIONS
    ]


def lease(name: str) -> Json:
    """The lease that a kubelet renews instead of writing its whole status."""
    spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now(micro=True)}
    return {"metadata": {"name": name}, "spec": spec}


def hosts_file() -> str:
    """The first lines of a file as /etc/hosts: there is no DNS."""
    return f"127.0.0.1 localhost {socket.gethostname()}\n"
