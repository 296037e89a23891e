"""The inventory: reports and the file of nodes applied to it, and which known node an unknown one probably means."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from string import ascii_lowercase, digits
from typing import Final, NamedTuple

import structlog

from blocklist.model.errors import InvalidError, UnknownNodeError
from blocklist.model.host_matching import ambiguous_message, normalize_name
from blocklist.model.inventory import Inventory
from blocklist.model.nodes_file import parse_nodes_file
from blocklist.model.reported_node import FILE_SOURCE, NodeSource, ReportedNode

log = structlog.get_logger(__name__)


NODES_PER_TURN: Final = 200
"""Number of reported nodes that are applied in one turn of the event loop: some ten milliseconds."""


class InventoryUpdater:
    """Applies a report of a few nodes at once, and the rest of a long one in the next turns of the event loop.

    `on_changed` is called with the names that may mean other machines now, in normal form. Belongs to the event loop.
    """

    def __init__(self, inventory: Inventory, on_changed: Callable[[set[str]], object]) -> None:
        self._inventory = inventory
        self._on_changed = on_changed
        self._staged = asyncio.Event()

    def set_nodes(self, source: NodeSource, nodes: Iterable[str | ReportedNode]) -> None:
        """Replace all nodes that a source reports."""
        self._inventory.stage_nodes(source, nodes)
        self._apply()

    def set_running(self, source: NodeSource, node_ids: Iterable[str]) -> None:
        """Replace the nodes on which a listener runs."""
        self._inventory.stage_running(source, node_ids)
        self._apply()

    def remove_source(self, source: NodeSource) -> bool:
        """Forget a source; whether it was known."""
        removed = self._inventory.stage_removal(source)
        self._apply()
        return removed

    def apply_all(self) -> None:
        """Apply what is left in one turn, before anybody is served."""
        self._on_changed(self._inventory.apply_staged())

    async def run(self) -> None:
        """Apply what is left; never returns."""
        while True:
            await self._staged.wait()
            self._apply()
            await asyncio.sleep(0)

    def _apply(self) -> None:
        self._on_changed(self._inventory.apply_staged(NODES_PER_TURN))
        (self._staged.set if self._inventory.has_staged else self._staged.clear)()


CHECK_SECONDS: Final = 2.0
"""Interval at which the file is checked."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of the file."""


class _Version(NamedTuple):
    """What changes with the content of a file, even if a copy keeps the time of modification."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int


class NodesFile:
    """The nodes of the file, as a source of the inventory. Belongs to the event loop; the file is read in a thread.

    `fault` is why the file could not be used, None if it is in force: until it is repaired, what was read before stays
    in force. A file that changes is read once it has stayed the same for CHECK_SECONDS: until then it may be half
    written. Without a path there is no file.
    """

    def __init__(self, path: str, updater: InventoryUpdater, on_fault: Callable[[int], object]) -> None:
        self.fault: str | None = None
        self._path = Path(path) if path else None
        self._updater = updater
        self._on_fault = on_fault
        self._checked = False
        self._seen: _Version | None = None
        self._last_read: _Version | None = None

    @property
    def is_configured(self) -> bool:
        return self._path is not None

    async def run(self) -> None:
        """Check every CHECK_SECONDS; never returns."""
        while True:
            await self.check()
            await asyncio.sleep(CHECK_SECONDS)

    async def check(self) -> None:
        """Read the file if it has changed since it was last read; the first time at once."""
        if self._path is None:
            return
        first, self._checked = not self._checked, True
        try:
            version = await asyncio.to_thread(_version_of, self._path)
            settled, self._seen = first or version == self._seen, version
            if version == self._last_read or not settled:
                return
            nodes = await asyncio.to_thread(_read, self._path, version)
        except OSError as error:
            # Tried again each time; a file with faults only when it changes.
            self._last_read = None
            self._fail([error.strerror or str(error)])
        except InvalidError as error:
            self._last_read = version
            self._fail(error.lines)
        else:
            if nodes is not None:
                self._last_read = version
                self._apply(nodes)

    def _apply(self, nodes: list[ReportedNode]) -> None:
        self._updater.set_nodes(FILE_SOURCE, nodes)
        self.fault = None
        self._on_fault(0)
        log.info("file of nodes read", file=str(self._path), nodes=len(nodes))

    def _fail(self, lines: Sequence[str]) -> None:
        fault = f"{self._path}: {lines[0]}"
        if fault != self.fault:
            log.error(
                "cannot use the file of nodes; what was read before stays in force", file=str(self._path), faults=lines
            )
        self.fault = fault
        self._on_fault(1)


def _version_of(file: Path | int) -> _Version:
    """The version of a path or an open file. Raises OSError, also for what is no file: reading it might never end."""
    status = os.fstat(file) if isinstance(file, int) else file.stat()
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "It is not a regular file")
    return _Version(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file that may have become a pipe: that would wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _read(path: Path, version: _Version) -> list[ReportedNode] | None:
    """The nodes in this version of the file; None if it has changed meanwhile. Raises OSError, InvalidError."""
    with open(path, "rb", opener=_open_at_once) as file:
        data = file.read(MAX_BYTES + 1) if _version_of(file.fileno()) == version else b""
        if _version_of(file.fileno()) != version:
            return None
    if len(data) > MAX_BYTES:
        raise InvalidError(f"the file is larger than {MAX_BYTES >> 20} MiB.")
    try:
        return parse_nodes_file(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidError(f"line {line}: the text is not UTF-8.") from None


MAX_SUGGESTIONS: Final = 5
"""Maximum number of suggestions for one request: each takes a few milliseconds of the event loop."""
MAX_LABEL: Final = 32
"""Maximum length of a first label, in characters, for which typing errors are tried."""
MAX_COMPARED: Final = 200
"""Maximum number of known nodes with each of which a name is compared."""
_LOOK_ALIKE: Final = {"o": "o0", "0": "0o", "l": "l1", "1": "1l", "i": "i1"}
"""Characters that look alike: `worker-O1O` is meant to be worker-010, rather than worker-019."""
_MAX_LOOK_ALIKE: Final = 6
"""Maximum number of such characters, the last ones of a name, that are tried: each doubles the number of names."""
_CHARACTERS: Final = ascii_lowercase + digits + "-_"


@dataclass(frozen=True, slots=True)
class KnownNodes:
    """The nodes of the inventory: all that listeners or the file of nodes name."""

    inventory: Inventory

    def __bool__(self) -> bool:
        """Whether any node is known."""
        return bool(self.inventory)

    def ambiguous(self, node_ids: Iterable[str]) -> dict[str, list[str]]:
        """Those that mean no node, because several claim them, with the ids of these."""
        claimed = {node_id: self.inventory.claimants(node_id) for node_id in node_ids}
        return {node_id: [*map(self.inventory.spelling, sorted(ids))] for node_id, ids in claimed.items() if ids}

    def unknown(self, node_ids: Iterable[str]) -> dict[str, str | None]:
        """Those that no listener knows, with the node that was probably meant. Empty if no node is known at all."""
        unknown = [node_id for node_id in node_ids if self and not self._is_named(node_id)]
        suggestions = [self._suggestion(node_id) for node_id in unknown[:MAX_SUGGESTIONS]]
        return dict.fromkeys(unknown) | dict(zip(unknown, suggestions, strict=False))

    def require(self, node_ids: Sequence[str]) -> None:
        """Raise UnknownNodeError if one of these nodes is unknown or ambiguous, or if no node is known at all."""
        if node_ids and not self:
            raise UnknownNodeError("No listener reports any nodes, so it is unknown whether these nodes exist.")
        lines = [_unknown_line(*item) for item in self.unknown(node_ids).items()]
        lines += [ambiguous_message(*item) for item in self.ambiguous(node_ids).items()]
        if lines:
            raise UnknownNodeError(
                lines[0] if len(lines) == 1 else f"No listener knows {len(lines)} of the nodes.", lines
            )

    def suggestion(self, node_id: str) -> str | None:
        """The known node that was probably meant; None if there is none, or the node is known."""
        return self.unknown([node_id]).get(node_id)

    def _is_named(self, node_id: str) -> bool:
        return bool(self.inventory.known_as(node_id) or self.inventory.claimants(node_id))

    def _suggestion(self, node_id: str) -> str | None:
        """A known node with one typing error in its first label; of few nodes, else the most similar one."""
        name = normalize_name(node_id)
        for candidate in _look_alikes(name):
            if known := self.inventory.known_as(candidate):
                return self.inventory.spelling(min(known))
        found: dict[str, str] = {}
        for candidate in _with_one_error(name):
            if known := self.inventory.known_as(candidate):
                found[candidate] = self.inventory.spelling(min(known))
        if not found:
            few = len(self.inventory) <= MAX_COMPARED
            found = {node: self.inventory.spelling(node) for node in self.inventory} if few else {}
            return _closest(name, found, cutoff=0.6)
        return _closest(name, found, cutoff=0)


def _closest(name: str, known: Mapping[str, str], cutoff: float) -> str | None:
    best = get_close_matches(name, sorted(known), n=1, cutoff=cutoff)
    return known[best[0]] if best else None


def _look_alikes(name: str) -> Iterator[str]:
    """The names that look like this one, itself included; none for a long one."""
    if len(name.partition(".")[0]) > MAX_LABEL:
        return
    places = [place for place, character in enumerate(name) if character in _LOOK_ALIKE][-_MAX_LOOK_ALIKE:]
    characters = list(name)
    for choice in product(*(_LOOK_ALIKE[name[place]] for place in places)):
        for place, character in zip(places, choice, strict=True):
            characters[place] = character
        yield "".join(characters)


def _with_one_error(name: str) -> set[str]:
    """The names that differ in one character of the first label: left out, added, wrong, or swapped with the next."""
    label, dot, domain = name.partition(".")
    if len(label) > MAX_LABEL or ":" in name:
        return set()
    splits = [(label[:i], label[i:]) for i in range(len(label) + 1)]
    labels = {
        *(left + right[1:] for left, right in splits if right),
        *(left + right[1] + right[0] + right[2:] for left, right in splits if len(right) > 1),
        *(left + character + right[1:] for left, right in splits if right for character in _CHARACTERS),
        *(left + character + right for left, right in splits for character in _CHARACTERS),
    }
    return {label + dot + domain for label in labels if label}


def _unknown_line(node_id: str, suggestion: str | None) -> str:
    return f"No listener knows {node_id}" + ("." if suggestion is None else f"; did you mean {suggestion}?")
