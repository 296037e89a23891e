"""The ResourceManager's REST API, as the tests use it: containers without Spark, labels and resources of nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import httpx

from tests.integration.process import NO_TLS

_EVERY_STATE: Final = "NEW,RUNNING,UNHEALTHY,DECOMMISSIONING,DECOMMISSIONED,LOST,REBOOTED,SHUTDOWN"


class ResourceManagerRest:
    """`url` is that of one ResourceManager; as user root of a cluster without security, unless there is an `auth`."""

    def __init__(self, url: str, auth: httpx.Auth | None = None) -> None:
        self._http = httpx.Client(
            base_url=f"{url}/ws/v1/cluster",
            auth=auth,
            params={} if auth else {"user.name": "root"},
            headers={"Accept": "application/json"},
            timeout=20,
            trust_env=False,
            verify=NO_TLS,
        )

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def answers(self) -> bool:
        """Whether it runs, as the active one or as a standby."""
        try:
            return self._http.get("/info").status_code == 200
        except httpx.TransportError:
            return False

    def nodes(self) -> list[dict[str, Any]] | None:
        """All nodes in any state; None unless it is the active ResourceManager."""
        try:
            answer = self._http.get("/nodes", params={"states": _EVERY_STATE})
        except httpx.TransportError:
            return None
        if answer.status_code != 200 or "json" not in answer.headers["Content-Type"]:
            return None
        return (answer.json()["nodes"] or {}).get("node", [])  # type: ignore[no-any-return]

    def node(self, host: str) -> dict[str, Any]:
        """The node of this host, the one that is RUNNING if there are several."""
        found = [node for node in self.nodes() or [] if node["nodeHostName"] == host]
        return next((node for node in found if node["state"] == "RUNNING"), found[0])

    def containers(self) -> dict[str, int]:
        """The number of containers on each host."""
        return {
            node["nodeHostName"]: node["numContainers"] for node in self.nodes() or [] if node["state"] == "RUNNING"
        }

    def submit(self, command: str = "sleep 600", megabytes: int = 600, queue: str = "default") -> str:
        """Submit an application that is one container; its id. YARN restarts a container that is preempted."""
        application = str(self._post("/apps/new-application")["application-id"])
        body = {
            "application-id": application,
            "application-name": "sleep",
            "application-type": "SLEEP",
            "queue": queue,
            "max-app-attempts": 20,
            "am-container-spec": {"commands": {"command": command}, "environment": {}},
            "resource": {"memory": megabytes, "vCores": 1},
        }
        self._post("/apps", body)
        return application

    def application(self, application: str) -> dict[str, Any]:
        return self._http.get(f"/apps/{application}").raise_for_status().json()["app"]  # type: ignore[no-any-return]

    def kill_applications(self) -> None:
        """End all applications; returns at once."""
        active = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
        found = self._http.get("/apps", params={"states": active}).raise_for_status().json()["apps"] or {}
        for application in found.get("app", []):
            self.kill_application(application["id"])

    def kill_application(self, application: str) -> None:
        """End an application; returns at once."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            answer = self._http.put(f"/apps/{application}/state", json={"state": "KILLED"})
            if answer.status_code < 400:
                break

    def set_label(self, node: str, label: str) -> None:
        """`node` is host:0, for all NodeManagers there, or host:port. The label must exist; an empty one removes it."""
        self.set_labels({node: label})

    def set_labels(self, labels: Mapping[str, str]) -> None:
        """Several in one request."""
        entries = [{"nodeId": node, "labels": [label] if label else []} for node, label in labels.items()]
        self._post("/replace-node-to-labels", {"nodeToLabels": entries})

    def add_label(self, label: str, *, exclusive: bool = True) -> None:
        """Create a label."""
        self._post("/add-node-labels", {"nodeLabelInfo": [{"name": label, "exclusivity": str(exclusive).lower()}]})

    def labels(self) -> set[str]:
        """The names of all labels."""
        found = self._http.get("/get-node-labels").raise_for_status().json() or {}
        entries = (found.get("nodeLabelsInfo") or found).get("nodeLabelInfo", [])
        return {entry["name"] for entry in (entries if isinstance(entries, list) else [entries])}

    def remove_labels(self) -> None:
        """Remove all labels."""
        for label in self.labels():
            self._http.post("/remove-node-labels", params={"labels": label}).raise_for_status()

    def set_resource(self, node_id: str, megabytes: int, vcores: int, overcommit: int) -> None:
        """`node_id` is host:port. `overcommit`: -1 lets containers run, 0 ends what is too much at once."""
        body = {"resource": {"memory": megabytes, "vCores": vcores}, "overCommitTimeout": overcommit}
        self._post(f"/nodes/{node_id}/resource", body)

    def _post(self, path: str, body: object = None) -> Any:
        answer = self._http.post(path, json={} if body is None else body).raise_for_status()
        return answer.json() if answer.content and "json" in answer.headers.get("Content-Type", "") else None
