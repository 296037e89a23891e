"""A selector in place of node names in the form that blocks nodes."""

from __future__ import annotations

from typing import Final

from app.page.forms import Form, FormError
from app.service import Service
from blocklist.model.errors import BlocklistError
from blocklist.model.node_ranges import MAX_NODES
from blocklist.model.selection import select_nodes
from blocklist.model.selector import parse_selector

_SYMBOLS: Final = frozenset("=!()")
"""Characters of selectors that no node id and no range has."""


def with_selected_nodes(service: Service, form: Form) -> Form:
    """The form with the names of the selected nodes in place of a selector. Raises FormError.

    So the preview shows what a confirmation blocks, even if labels change in between.
    """
    text = form.get("nodes", "")
    if _SYMBOLS.isdisjoint(text):
        return form
    try:
        selection = select_nodes(parse_selector(text), service.inventory)
        selection.require_known_labels()
        return {**form, "nodes": "\n".join(selection.require_nodes(MAX_NODES))}
    except BlocklistError as error:
        raise FormError({"nodes": error.detail}) from None
