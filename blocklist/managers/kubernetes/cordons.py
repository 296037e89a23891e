"""CordonMirror: a node that somebody has cordoned is claimed in the service, and the claim goes with the uncordon."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from blocklist.client.client import BlocklistClient
from blocklist.managers.kubernetes.kubernetes_node import KubernetesNode
from blocklist.managers.plan import PlanStep, StepAction
from blocklist.model.errors import BlocklistError, NotFoundError

log = logging.getLogger("blocklist.managers")

OWNER: Final = "kubernetes"


@dataclass(frozen=True, kw_only=True, slots=True)
class CordonPlan:
    """Claims to make, node to cause, and claims to remove."""

    claim: Mapping[str, str]
    remove: tuple[str, ...]

    def steps(self) -> list[PlanStep]:
        made = (
            PlanStep(action=StepAction.BLOCK, name=name, reason=f"Node {name} is claimed for {OWNER}: {cause}.")
            for name, cause in self.claim.items()
        )
        removed = (
            PlanStep(
                action=StepAction.FREE,
                name=name,
                reason=f"Node {name} is not cordoned: the claim of {OWNER} is removed.",
            )
            for name in self.remove
        )
        return [*made, *removed]


class CordonMirror:
    """`cluster` is the id of this manager's listener: claims of other clusters' nodes are left alone.

    A claim that somebody removes while the node is cordoned stays away until the node is cordoned again.
    """

    def __init__(self, client: BlocklistClient, cluster: str) -> None:
        self._client = client
        self._cluster = cluster
        self._mirrored: dict[str, str] = {}
        self._claimed: set[str] | None = None
        self._failing = False

    def plan(self, nodes: Mapping[str, KubernetesNode]) -> CordonPlan:
        """What is missing. Raises BlocklistError if the claims cannot be read."""
        claimed = self._known_claims(nodes)
        cordoned = {name: node.uid for name, node in nodes.items() if node.cordoned}
        self._mirrored = {name: uid for name, uid in self._mirrored.items() if cordoned.get(name) == uid}
        return CordonPlan(
            claim={
                name: cordon_cause(self._cluster, nodes[name])
                for name in sorted(cordoned.keys() - claimed - self._mirrored.keys())
            },
            remove=tuple(sorted(claimed - cordoned.keys())),
        )

    def reconcile(self, nodes: Mapping[str, KubernetesNode]) -> bool:
        """Make and remove the claims that `plan` has for these nodes; the loop logs its steps.

        False if the service refused, or could not be reached: it has to be tried again.
        """
        try:
            plan = self.plan(nodes)
            self._apply(plan, nodes)
        except BlocklistError as error:
            if not self._failing:
                log.warning("Cordoned nodes cannot be claimed: %s", error)
            self._failing, self._claimed = True, None
            return False
        self._failing = False
        return True

    def _apply(self, plan: CordonPlan, nodes: Mapping[str, KubernetesNode]) -> None:
        claimed = set(self._known_claims(nodes))
        self._claimed = None  # Until all has succeeded.
        for name, cause in plan.claim.items():
            self._client.put_claim(name, OWNER, cause)
            claimed.add(name)
        self._mirrored |= {name: node.uid for name, node in nodes.items() if node.cordoned}
        for name in plan.remove:
            with suppress(NotFoundError):  # Somebody has unblocked it.
                self._client.remove_claim(name, OWNER)
            claimed.discard(name)
        self._claimed = claimed

    def _known_claims(self, nodes: Mapping[str, KubernetesNode]) -> set[str]:
        """The nodes that this manager has claimed; read at the start, and after a failure."""
        if self._claimed is None:
            self._claimed = self._read_claims(nodes)
        return self._claimed

    def _read_claims(self, nodes: Mapping[str, KubernetesNode]) -> set[str]:
        """The nodes that this manager has claimed before. Another cluster may have nodes of the same names."""
        claims = self._client.all_claims(owner=OWNER)
        found = {each.node for each in claims if each.cause.startswith(_prefix(self._cluster))}
        # After a restart, what is claimed was mirrored: a claim that is missing was removed, or never made.
        self._mirrored |= {name: nodes[name].uid for name in found if name in nodes and nodes[name].cordoned}
        return found


def cordon_cause(cluster: str, node: KubernetesNode) -> str:
    """The cause of a claim, without commas, which separate causes."""
    return f"{_prefix(cluster)}{node.cordon_writer or 'an unknown client'}".replace(",", ";")


def _prefix(cluster: str) -> str:
    return f"Cordoned in {cluster} by "
