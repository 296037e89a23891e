"""The page of a node: its block and claims, the listeners that have applied it, its changes."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request, Response

from app.api.applied import ListenerProgress, applied_by_live_listeners, task_managers_on
from app.api.parameters import NodeId
from app.components import Components, components_of
from app.page.errors import HtmlRoute
from app.page.forms import int_param
from app.page.render import render_page
from app.page.visitor import ReaderVisitor
from blocklist.model.changes import Change
from blocklist.model.drift import Drift
from blocklist.model.evidence import AssessedEvidence
from blocklist.model.host_matching import same_machine
from blocklist.model.inventory import InventoryNode
from blocklist.model.node_lookup import claims_on
from blocklist.model.time import to_millis

router = APIRouter(route_class=HtmlRoute, include_in_schema=False)

PAGE_SIZE: Final = 50
"""Maximum number of changes on a page."""
MAX_ROWS: Final = 100
"""Maximum number of rows of each other kind."""


@router.get("/page/nodes/{node_id}")
async def get_node(request: Request, visitor: ReaderVisitor, node_id: NodeId) -> Response:
    """The page; with status 404 if nobody reports the node, it is not blocked, and has no change in the log."""
    components = components_of(request)
    engine = components.engine
    before = int_param(request, "before")
    node = engine.view.get(node_id)
    if node is not None:
        node_id = node.id
    changes = await engine.store.latest_changes(PAGE_SIZE + 1, node_id=node_id, before=before)
    last = changes[0] if changes and before is None else await engine.store.last_change(node_id)
    inventory = _known_as(components, node_id)
    return render_page(
        request,
        "node.html.j2",
        visitor,
        HTTPStatus.OK if last is not None or node is not None or inventory else HTTPStatus.NOT_FOUND,
        id=node_id,
        node=node,
        by=engine.last_changes.created_by(node_id),
        claims=() if node is None else claims_on(engine.view.tracker, node, engine.view.clock()),
        dismissals=engine.dismissals.of_node(node_id),
        changes=changes[:PAGE_SIZE],
        older=changes[PAGE_SIZE - 1].revision if len(changes) > PAGE_SIZE else None,
        last=last,
        probation_end=components.engine.automatic_blocks.probation_end(
            components.engine.view.tracker, node_id, components.clock()
        ),
        listeners=[] if last is None else _listeners(components, last),
        task_managers=task_managers_on(components, node_id),
        drift=_drift(components, node_id),
        evidence=_evidence(components, node_id),
        required=components.settings.evidence_applications,
        window=to_millis(components.settings.evidence_window),
        inventory=inventory,
    )


def _drift(components: Components, node_id: str) -> list[Drift]:
    """Where listeners report something else about the machine than the list says."""
    latest, aliases = components.listeners.drift.latest, components.listeners.inventory.aliases
    found = () if latest is None else latest.drift
    return [each for each in found if same_machine(each.node, node_id, aliases)][:MAX_ROWS]


def _evidence(components: Components, node_id: str) -> list[AssessedEvidence]:
    """What applications report about the machine, under any of its names."""
    aliases = components.listeners.inventory.aliases
    assessed = components.listeners.evidence.assess(components.clock())
    return [each for each in assessed if same_machine(each.evidence.node, node_id, aliases)][:MAX_ROWS]


def _known_as(components: Components, node_id: str) -> list[InventoryNode]:
    """The node in the inventory; several if its name is ambiguous."""
    inventory = components.listeners.inventory
    found = sorted(inventory.known_as(node_id) or inventory.claimants(node_id))
    return [inventory.get(each) for each in found[:MAX_ROWS]]


def _listeners(components: Components, change: Change) -> list[ListenerProgress]:
    """The live listeners; first those that have not applied the change."""
    progress = applied_by_live_listeners(components, change)
    return sorted(progress, key=lambda listener: (listener.applied, not listener.refused, not listener.task_managers))
