"""SQL on listeners: functions of a connection and values, inside somebody's transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.engine import Connection

from app.store.schema import listeners
from blocklist.listener import Listener, Role


@dataclass(frozen=True, kw_only=True, slots=True)
class Secret:
    """What pushes are signed with; after a rotation with the `old` one as well, until `old_until` (Unix ms)."""

    present: str
    old: str | None = None
    old_until: int = 0

    def valid(self, now: int) -> list[str]:
        """The secrets to sign with now."""
        return [self.present, self.old] if self.old is not None and now < self.old_until else [self.present]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredListener:
    """A listener as it is kept; its lease end, which no restart can know, is `lapsed_at`, or None if it was live."""

    listener: Listener
    secret: Secret
    lapsed_at: int | None


def load(connection: Connection) -> list[StoredListener]:
    """All of them."""
    return [_stored(row._asdict()) for row in connection.execute(select(listeners))]


def save(connection: Connection, listener: Listener, secret: Secret) -> None:
    """Keep a listener that has registered, in the place of what was there."""
    connection.execute(delete(listeners).where(listeners.c.id == listener.id))
    connection.execute(insert(listeners).values(_row(listener, secret)))


def remove(connection: Connection, ids: list[str]) -> None:
    """Forget listeners."""
    connection.execute(delete(listeners).where(listeners.c.id == bindparam("gone")), [{"gone": own} for own in ids])


def save_acked(connection: Connection, acked: Mapping[str, int | None]) -> None:
    """Keep how far listeners are."""
    statement = update(listeners).where(listeners.c.id == bindparam("own")).values(acked=bindparam("to"))
    connection.execute(statement, [{"own": own, "to": to} for own, to in acked.items()])


def save_lapsed(connection: Connection, ids: list[str], now: int) -> None:
    """Keep that these leases have lapsed."""
    statement = update(listeners).where(listeners.c.id == bindparam("own")).values(lapsed_ms=now)
    connection.execute(statement, [{"own": own} for own in ids])


def _row(listener: Listener, secret: Secret) -> dict[str, object]:
    return {
        "id": listener.id,
        "role": listener.role.value,
        "session": listener.session,
        "former": json.dumps(listener.former),
        "callback_url": listener.callback_url,
        "lease_ms": listener.lease,
        "acked": listener.acked,
        "lapsed_ms": None,
        "secret": secret.present,
        "old_secret": secret.old,
        "old_secret_until_ms": secret.old_until,
        "min_nodes": listener.min_nodes,
    }


def _stored(row: Mapping[str, object]) -> StoredListener:
    listener = Listener(
        id=str(row["id"]),
        role=Role(str(row["role"])),
        session=str(row["session"]),
        former=tuple(json.loads(str(row["former"]))),
        callback_url=_text(row["callback_url"]),
        lease=_number(row["lease_ms"]) or 0,
        lease_end=_number(row["lapsed_ms"]) or 0,
        acked=_number(row["acked"]),
        min_nodes=_number(row["min_nodes"]) or 0,
    )
    old_until = _number(row["old_secret_until_ms"]) or 0
    secret = Secret(present=str(row["secret"]), old=_text(row["old_secret"]), old_until=old_until)
    return StoredListener(listener=listener, secret=secret, lapsed_at=_number(row["lapsed_ms"]))


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None
