"""CordonMirror: a node that somebody has cordoned is claimed in the service, and the claim goes with the uncordon."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from blocklist.client.client import BlocklistClient
from blocklist.managers.kubernetes.nodes import Cordon, KubernetesNode
from blocklist.managers.plan import PlanStep, StepAction
from blocklist.model.claims import CORDON_OWNER
from blocklist.model.errors import (
    BlocklistError,
    DismissedError,
    ForbiddenError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)
from blocklist.model.node import PERMANENT

log = logging.getLogger("blocklist.managers")

READ_SECONDS: Final = 30.0
"""After which the claims are read again, and refused ones are tried again: others may have changed them meanwhile."""
RETRY_SECONDS: Final = 10.0
"""Seconds without an attempt after one on which the service did not answer."""
APPLY_SECONDS: Final = 2.0
"""After which the rest waits for the next reconciliation: blocks must not wait for a thousand cordons."""

MeantBy = Callable[[str], Collection[str]]
"""The names in Kubernetes of the nodes that an id on the list means."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CordonPlan:
    """Claims to make, node to cause, and the ids on the list from which claims are removed."""

    claim: Mapping[str, str]
    remove: tuple[str, ...]

    def steps(self) -> list[PlanStep]:
        made = (
            PlanStep(action=StepAction.BLOCK, name=name, reason=_claimed(name, cause))
            for name, cause in self.claim.items()
        )
        removed = (PlanStep(action=StepAction.FREE, name=name, reason=_removed(name)) for name in self.remove)
        return [*made, *removed]


class CordonMirror:
    """`cluster` is the id of this manager's listener: claims of other clusters' nodes are left alone.

    A claim that somebody removes while the node is cordoned stays away until the node is cordoned again. A node that
    was cordoned before this mirror knew it is not claimed if somebody has unblocked it since: the service knows that.

    `is_active` is whether this manager may act. `seconds` is how long one reconciliation may take.
    """

    def __init__(
        self,
        client: BlocklistClient,
        cluster: str,
        *,
        is_active: Callable[[], bool] = lambda: True,
        seconds: float = APPLY_SECONDS,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._is_active = is_active
        self._seconds = seconds
        self._history: str | None = None
        self._first: Mapping[str, Cordon] | None = None
        self._mirrored: dict[str, Cordon] = {}
        self._refused: dict[str, tuple[Cordon, float]] = {}
        self._claims: dict[str, str] | None = None
        self._read_at = 0.0
        self._not_before = 0.0
        self._failure = ""

    def plan(self, nodes: Mapping[str, KubernetesNode], meant_by: MeantBy, history: str | None = None) -> CordonPlan:
        """What is missing; `history` is that of the list. Raises BlocklistError if the claims cannot be read."""
        cordons = {name: node.cordon for name, node in nodes.items() if node.cordoned}
        self._follow(cordons, history)
        claims = self._known_claims()
        named = {node_id: (node_id,) if node_id in nodes else meant_by(node_id) for node_id in claims}
        self._note_claimed(nodes, {name: claims[node_id] for node_id, names in named.items() for name in names})
        now = time.monotonic()
        waiting = {name for name, (_, retry_at) in self._refused.items() if now < retry_at}
        return CordonPlan(
            claim={
                name: cordon_cause(self._cluster, nodes[name])
                for name in sorted(cordons.keys() - self._mirrored.keys() - waiting)
            },
            remove=tuple(sorted(each for each, names in named.items() if cordons.keys().isdisjoint(names))),
        )

    def reconcile(
        self, nodes: Mapping[str, KubernetesNode], meant_by: MeantBy, history: str | None = None
    ) -> float | None:
        """Make and remove the claims that `plan` has for these nodes.

        The seconds after which it has to be done again, as something is left, or was refused; None if all is done.
        """
        if (wait := self._not_before - time.monotonic()) > 0:
            return wait
        try:
            complete = self._apply(self.plan(nodes, meant_by, history), nodes)
        except BlocklistError as error:
            if str(error) != self._failure:
                log.warning("Cordoned nodes cannot be claimed: %s", error)
            self._failure, self._claims = str(error), None
            self._not_before = time.monotonic() + RETRY_SECONDS
            return RETRY_SECONDS
        self._failure = ""
        if not complete:
            return 0.0 if self._is_active() else RETRY_SECONDS
        next_try = min((at for _, at in self._refused.values()), default=None)
        return None if next_try is None else max(0.1, next_try - time.monotonic())

    def _follow(self, cordons: Mapping[str, Cordon], history: str | None) -> None:
        """Forget what is about cordons that have ended, and everything if the service has lost changes."""
        if history != self._history:
            self._history, self._first, self._claims = history, None, None
            self._mirrored, self._refused = {}, {}
        if self._first is None:
            self._first = dict(cordons)
        self._mirrored = {name: cordon for name, cordon in self._mirrored.items() if cordons.get(name) == cordon}
        self._refused = {name: each for name, each in self._refused.items() if cordons.get(name) == each[0]}

    def _note_claimed(self, nodes: Mapping[str, KubernetesNode], causes: Mapping[str, str]) -> None:
        """After a start, what is claimed with the same cause was mirrored; `causes` are those of the claims."""
        for name, cause in causes.items():
            node = nodes.get(name)
            if node is not None and self._is_first(node) and cause == cordon_cause(self._cluster, node):
                self._mirrored[name] = node.cordon

    def _is_first(self, node: KubernetesNode) -> bool:
        """Whether the node was cordoned before this mirror knew it."""
        return node.cordoned and self._first is not None and self._first.get(node.name) == node.cordon

    def _known_claims(self) -> Mapping[str, str]:
        """The claims that this manager has made, with their causes, by id on the list."""
        now = time.monotonic()
        if self._claims is None or now - self._read_at > READ_SECONDS:
            made = self._client.all_claims(owner=CORDON_OWNER)
            # Another cluster may have nodes of the same names.
            self._claims = {each.node: each.cause for each in made if each.cause.startswith(_prefix(self._cluster))}
            self._read_at = now
        return self._claims

    def _apply(self, plan: CordonPlan, nodes: Mapping[str, KubernetesNode]) -> bool:
        """Whether all was tried. What is refused for one node withholds nothing from the others."""
        end = time.monotonic() + self._seconds
        for node_id in plan.remove:
            if not self._may_go_on(end):
                return False
            self._remove(node_id)
        for name, cause in plan.claim.items():
            if not self._may_go_on(end):
                return False
            self._claim(nodes[name], cause)
        return True

    def _may_go_on(self, end: float) -> bool:
        return self._is_active() and time.monotonic() < end

    def _remove(self, node_id: str) -> None:
        assert self._claims is not None
        with suppress(NotFoundError):  # Somebody has unblocked it.
            self._client.remove_claim(node_id, CORDON_OWNER)
            log.info("%s", _removed(node_id))
        self._claims.pop(node_id, None)

    def _claim(self, node: KubernetesNode, cause: str) -> None:
        assert self._claims is not None
        seen = (node.cordoned_at or 0) if self._is_first(node) else PERMANENT
        try:
            block = self._client.put_claim(node.name, CORDON_OWNER, cause, last_evidence=seen)
        except DismissedError as error:
            log.info("Node %s is cordoned, and stays unblocked: %s", node.name, error)
        except (UnavailableError, UnauthorizedError, ForbiddenError):
            raise
        except BlocklistError as error:
            if node.name not in self._refused:
                log.warning("Node %s is cordoned, but cannot be claimed: %s", node.name, error)
            self._refused[node.name] = node.cordon, time.monotonic() + READ_SECONDS
            return
        else:
            self._claims[block.id] = cause
            log.info("%s", _claimed(node.name, cause))
        self._mirrored[node.name] = node.cordon
        self._refused.pop(node.name, None)


def cordon_cause(cluster: str, node: KubernetesNode) -> str:
    """The cause of a claim, without commas, which separate causes."""
    return f"{_prefix(cluster)}{node.cordon_writer or 'an unknown client'}".replace(",", ";")


def _prefix(cluster: str) -> str:
    return f"Cordoned in {cluster} by "


def _claimed(name: str, cause: str) -> str:
    return f"Node {name} is claimed for {CORDON_OWNER}: {cause}."


def _removed(node_id: str) -> str:
    return f"Node {node_id} is not cordoned: the claim of {CORDON_OWNER} is removed."
