"""Service: builds, runs and stops everything, in one straight line.

Each part gets what it needs in its constructor, so the order below is the direction of dependencies.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import structlog
from fastapi import Request

from app.alertmanager import AlertBlocker
from app.audit import AuditLog
from app.auth.sessions import Sessions
from app.auth_setup import client_secrets, make_authenticator, make_sign_in
from app.engine.background import Compactor, EvidenceBlocker, TaskHealth, expire_blocks, on_changes, probe_database
from app.engine.handler import BlocklistHandler, LimitGuard
from app.engine.list_view import LastChanges, ListView, SelectedLists, TableView
from app.listeners.drift import DriftMonitor, ReplacementReleaser
from app.listeners.operations import HeartbeatRecorder, ListenerRegistry
from app.listeners.push import Pusher
from app.listeners.replication import ListenerReader, ListenerWriter, PushOwnership, UnsavedReports
from app.listeners.reports import KnownNodes, ListenerQuota, NodesFile
from app.listeners.state import ListenerDirectory, UsableNodes
from app.logs import ChangeLogWriter, isolated
from app.metrics import Metrics, ServiceMetrics
from app.net.addresses import Networks
from app.net.urls import make_senders
from app.notices.notifier import Notifier, Target
from app.notices.observer import ListenerObserver, NoticeGroups, TrackedNodes
from app.secret_files import FileWatcher, SecretFile
from app.settings import Settings
from app.store.audit import Origin
from app.store.database import check_renewed, is_postgresql, make_store
from app.store.queries import LoadedState, Topic
from app.store.store import Store
from app.watch import ChangeFeed, StreamQuota
from blocklist import __version__
from blocklist.model.changes import Author, Change, Source
from blocklist.model.draft import BlocklistTracker, Draft
from blocklist.model.errors import UnavailableError
from blocklist.model.evidence import AutomaticBlocks, Dismissals, EvidenceStore
from blocklist.model.inventory import Inventory
from blocklist.model.limits import EvidenceLimit, ask_above
from blocklist.model.names import ConfirmedNodes
from blocklist.model.node import to_millis
from blocklist.model.reported_node import CLUSTER_LABEL
from blocklist.wire.audit import AuditKind, Way

log = structlog.get_logger(__name__)


class Service:
    """One service. Belongs to the event loop.

    The list is read in `view` and `feed`, its history in `store`, and changed through `handler`. Listeners are read in
    `directory` and changed through `registry`.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], int],
        store: Store,
        loaded: LoadedState,
        database_file: SecretFile | None = None,
    ) -> None:
        """`store` is open, and `loaded` is what it has; its URL may be in a file. `run` starts the service."""
        self.settings = settings
        self.clock = clock
        self.store = store
        self.metrics = metrics = Metrics()
        self.task_health = TaskHealth()

        # The list
        self.inventory = Inventory()
        aliases, machine_of = self.inventory.aliases, self.inventory.machine_of
        store.use_aliases(aliases)
        tracker = BlocklistTracker(loaded.snapshot, aliases)
        table = TableView(tracker, clock, self.inventory.identifiers, lambda: self.inventory.has_staged)
        self.view = ListView(tracker, clock, store.breaker.outdated_seconds, table)
        self.feed = ChangeFeed(store, self.view)
        self.last_changes = LastChanges(loaded.last_changes)
        self.selected_lists = SelectedLists(self.view, self.inventory, self.last_changes)
        self.dismissals = Dismissals(clock, loaded.dismissals, aliases)
        self.automatic_blocks = AutomaticBlocks(settings.repeat_rule, aliases)
        self.automatic_blocks.reset(loaded.automatic_blocks)

        # Evidence, and the nodes that count for it
        confirmed_nodes = ConfirmedNodes(
            authenticated=settings.auth == "tokens", aliases=aliases, machine_of=machine_of
        )
        self.evidence = EvidenceStore(settings.evidence_applications, confirmed_nodes.principal_of, aliases, machine_of)

        # Listeners, of this process and of other replicas, and the pushes to them
        quota = ListenerQuota(
            max_listeners=settings.max_listeners_per_token, max_bytes=settings.max_report_bytes_per_token
        )
        self.directory = ListenerDirectory(self.view, self.evidence, confirmed_nodes, self.inventory, quota, clock)
        counted = confirmed_nodes.known if confirmed_nodes.authenticated else None
        self.known_nodes = KnownNodes(self.inventory, self.directory.is_nowhere, counted)
        self.usable_nodes = UsableNodes(self.directory, self.view, confirmed_nodes)
        self.nodes_file = NodesFile(
            settings.nodes_file,
            self.directory.inventory_updater,
            metrics.nodes_file_faulty.set,
            partial(confirmed_nodes.set_trusted, ""),  # No listener has this id.
        )
        self.drift = DriftMonitor(self.directory, self.view, self.last_changes)
        ownership = PushOwnership(store.listeners, store.replica, shared=store.replicated)
        unsaved = UnsavedReports(shared=store.replicated)
        heartbeats = HeartbeatRecorder(self.directory, unsaved, tracker, clock)
        self.callback_policy = settings.callback_policy
        self._pusher = Pusher(
            self.directory,
            ownership,
            heartbeats,
            self.feed,
            self.view,
            self.callback_policy,
            heartbeat_seconds=settings.heartbeat.total_seconds(),
            on_duration=metrics.push_seconds.observe,
        )
        reader = ListenerReader(
            store.listeners,
            self.directory,
            tracker,
            on_registered=self._pusher.on_registered,
            clock=clock,
            replicated=store.replicated,
        )
        self._listener_writer = ListenerWriter(
            store.listeners, ownership, self.directory, reader, unsaved, tracker, clock
        )
        self.registry = ListenerRegistry(
            store.listeners, ownership, self.directory, reader, heartbeats, unsaved, self.view, self.feed, quota, clock
        )

        # Changes of the list: `publish` and `reset` below follow them
        self._change_log = ChangeLogWriter(settings.log_format, metrics.count_lost_log_lines)
        self._notices = self._make_notices(ownership)
        self.handler = BlocklistHandler(tracker, store, clock, self, self.automatic_blocks, measured=metrics.commit)
        self.limit_guard = LimitGuard(settings.limits, self.usable_nodes, self.inventory, metrics.count_refused)
        self._evidence_blocker = EvidenceBlocker(
            self.evidence,
            tracker,
            self.handler,
            self.limit_guard,
            EvidenceLimit(share=settings.evidence_max_share, confirmed=confirmed_nodes.__len__),
            self.automatic_blocks,
            self.dismissals,
            clock,
            settings.evidence_duration_ms,
        )
        self.alert_blocker = AlertBlocker(
            store,
            self.handler,
            self.limit_guard,
            self.dismissals,
            self.automatic_blocks,
            clock,
            node_label=settings.alertmanager_node_label,
            duration=to_millis(settings.alertmanager_duration),
            minimum=to_millis(settings.alertmanager_minimum),
        )
        self._compactor = Compactor(
            tracker,
            store,
            clock,
            max_changes=settings.log_max_changes,
            max_age=settings.log_max_age,
            on_compacted=metrics.compacted.inc,
        )

        # Who may do what, from where, and how many streams a client may have
        self.authenticator = make_authenticator(settings, store.tokens, clock)
        sign_in = make_sign_in(settings, self.authenticator.jwt_verifier)
        self.sessions = Sessions(self.authenticator, store.tokens, clock, sign_in)
        self.audit = AuditLog(store, clock, metrics.audit_lost.inc)
        self.trusted_proxies = Networks(settings.trusted_proxies.split(","))
        self.stream_quota = StreamQuota(settings.max_waits_per_client)
        self.files = FileWatcher()
        self._watch_secrets(database_file)

        metrics.register(
            ServiceMetrics(
                view=self.view,
                feed=self.feed,
                clock_offset=store.clock_offset,
                fast_puts=metrics.fast_puts,
                handler=self.handler,
                directory=self.directory,
                writer=self._listener_writer,
                pusher=self._pusher,
                evidence=self.evidence,
                evidence_blocker=self._evidence_blocker,
                drift=self.drift,
                task_health=self.task_health,
                alert_blocker=self.alert_blocker,
            )
        )

    def _make_notices(self, ownership: PushOwnership) -> Notifier | None:
        settings, metrics = self.settings, self.metrics
        if not (targets := self._targets(settings.notify_url)):
            return None
        nodes = TrackedNodes()
        return Notifier(
            targets,
            NoticeGroups(lambda node_id: self.inventory.labels_of(node_id).get(CLUSTER_LABEL)),
            nodes,
            ListenerObserver(nodes, self.directory, self.view, self.drift, self.clock),
            replicated=self.store.replicated,
            is_first=lambda: ownership.is_first,
            on_left_out=metrics.notices_left_out.inc,
        )

    def _targets(self, urls: str) -> list[Target]:
        return [Target(place, sender, self.metrics.count_notice) for place, sender in enumerate(make_senders(urls), 1)]

    def _watch_secrets(self, database: SecretFile | None) -> None:
        """Use what is in the files of secrets when it changes."""
        if database is not None:
            self.files.watch([database.path], self.store.renew)
        notices, path = self._notices, self.settings.notify_url_file
        if notices is not None and path:
            urls = SecretFile("BLOCKLIST_NOTIFY_URL_FILE", path, self.settings.notify_url, make_senders)

            async def renew() -> None:
                notices.use(self._targets(urls.read()))

            self.files.watch([path], renew)
        sign_in, path = self.sessions.sign_in, self.settings.oidc_client_secret_file
        if sign_in is not None and path:
            of_issuers = partial(client_secrets, self.settings)
            given = self.settings.oidc_client_secret
            secret = SecretFile("BLOCKLIST_OIDC_CLIENT_SECRET_FILE", path, given, of_issuers)

            async def renew_client() -> None:
                sign_in.use_secrets(of_issuers(secret.read()))

            self.files.watch([path], renew_client)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Start everything; on leaving, stop it in reverse and write what is not saved yet. Raises UnavailableError."""
        # Before the first heartbeat: evidence about a node that was unblocked by hand must not block it again.
        await self._evidence_blocker.load(self.store)
        # Before the first request: the names in the file count from the first block on.
        await self.nodes_file.check()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(_finish, "last write of the tokens", self.authenticator.save_used)
            stack.push_async_callback(_finish, "last audit records", self.audit.close)
            stack.push_async_callback(_finish, "last write of the listeners", self._listener_writer.close)
            if self._notices is not None:
                stack.push_async_callback(_finish, "last notices", self._notices.close)
            stack.callback(self._change_log.close)
            # Not cancelled: it commits what it has accepted.
            stack.push_async_callback(self._drain, self.task_health.start("changes", self.handler.run))
            stack.push_async_callback(_finish, "end of the pushes", self._pusher.close)
            # Before the tasks: one of them would renew the lease of this replica, too.
            await self._listener_writer.load()
            # Before drivers ask: without all names they would get another table now, and the right one later.
            self.directory.inventory_updater.apply_all()
            await self.authenticator.load()
            if self.store.replicated:
                # The list was read before that: what others have committed since then must be in the first response.
                await self._read_changes()
            if len(self.directory):
                self.view.table.current()
            tasks = [self.task_health.start(name, work) for name, work in self._tasks().items()]
            stack.push_async_callback(_cancel, tasks)
            stack.callback(self.feed.close)
            start = {"version": __version__, "replica": self.store.replica, "settings": self.settings.recorded}
            try:
                await self.audit.write(AuditKind.SETTINGS, Origin(way=Way.SERVICE), start)
            except UnavailableError:
                # On a full disk, reads are served anyway: the record is written later.
                self.audit.note(AuditKind.SETTINGS, Origin(way=Way.SERVICE), start)
            yield

    @property
    def ask_above(self) -> int:
        """People are asked before a change of more nodes than this."""
        return ask_above(len(self.usable_nodes.known))

    def stop_streams(self) -> None:
        """Before the last requests end: end the watches with a `bye` event, and answer the requests that wait."""
        self.feed.close()
        self.view.close()
        self.directory.acks.notify_all()

    async def _drain(self, handler_task: asyncio.Task[None]) -> None:
        self.handler.close()
        await handler_task

    def _tasks(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The background tasks besides the handler, by name."""
        tasks: dict[str, Callable[[], Awaitable[None]]] = {
            "expiry": partial(expire_blocks, self.view.tracker, self.handler, self.clock),
            "compaction": self._compactor.run,
            "database": partial(probe_database, self.store, self._read_again),
            "notifications": self._listen,
            "listeners": self._listener_writer.run,
            "evidence": self._evidence_blocker.run,
            "drift": self.drift.run,
            "replaced machines": ReplacementReleaser(self.directory, self.view, self.handler).run,
            "inventory": self.directory.inventory_updater.run,
            "audit": self.audit.run,
        }
        if self.nodes_file.is_configured:
            tasks["nodes file"] = self.nodes_file.run
        tasks["secrets"] = self.files.run
        if self._notices is not None:
            tasks["notices"] = self._notices.run
        if self.authenticator.enabled:
            tasks |= {"tokens": self.authenticator.run, "sessions": self.sessions.run}
        return tasks

    async def _listen(self) -> None:
        """Follow what other replicas write; never returns."""
        await self.store.listen(
            {
                Topic.CHANGES: self.handler.notify_remote_change,
                Topic.LISTENERS: self._listener_writer.notify_remote_change,
                Topic.TOKENS: self.authenticator.notify_remote_change,
            }
        )

    async def _read_again(self) -> None:
        """Read what other replicas may have written meanwhile. Raises UnavailableError."""
        await self.authenticator.refresh()
        await self.sessions.refresh()
        await self._read_changes()

    async def _read_changes(self) -> None:
        """Of the list and of the listeners. Raises UnavailableError."""
        self.handler.notify_remote_change()
        await self.handler.submit(_change_nothing, Author(source=Source.TIME))
        await self._listener_writer.refresh()

    def publish(self, changes: Sequence[Change], *, from_log: bool) -> None:
        """Apply committed changes to all that follows the list, in this order; the tracker has applied them.

        If a part fails, that is logged and the part is rebuilt. Neither the other parts nor the requests that made the
        changes fail with it. `from_log`: they were read from the database. The replica that made a change counts and
        logs it; without other replicas, a change from the database was made here, by a commit that seemed to fail.
        """
        try:
            self.last_changes.apply(changes)
            self.view.apply(changes)
            self.feed.publish(changes)
        except Exception:
            log.exception("a change could not be applied in memory; what follows the list is rebuilt")
            self._rebuild(changes)
        with isolated("evidence"):
            on_changes(self.evidence, changes)
        with isolated("dismissals"):
            self.dismissals.apply(changes)
        with isolated("automatic blocks"):
            self.automatic_blocks.apply(changes)
        with isolated("metrics of changes"):
            (self.metrics.count_remote_changes if from_log else self.metrics.count_changes)(changes)
        if self._notices is not None:
            with isolated("notices"):
                self._notices.publish(changes, from_log=from_log)
        if not (from_log and self.store.replicated):
            with isolated("change log"):
                self._change_log.write(changes)

    def _rebuild(self, changes: Sequence[Change]) -> None:
        """Read the list from the tracker again; watches read these changes from the database."""
        with isolated("last changes"):
            self.last_changes.forget(changes)
        with isolated("list"):
            self.view.reset()
        with isolated("change feed"):
            self.feed.reset()

    def reset(self, loaded: LoadedState) -> None:
        """The list was read from the database as a whole; the tracker has it."""
        with isolated("last changes"):
            self.last_changes.reset(loaded.last_changes)
        with isolated("automatic blocks"):
            self.automatic_blocks.reset(loaded.automatic_blocks)
        with isolated("list"):
            self.view.reset()
        with isolated("change feed"):
            self.feed.reset()
        with isolated("dismissals"):
            self.dismissals.reset(loaded.dismissals)
        with isolated("evidence"):
            for node_id, dismissal in loaded.dismissals:
                self.evidence.record_unblock(node_id, dismissal.at)
        with isolated("listeners"):
            self.directory.reset()
        if self._notices is not None:
            with isolated("notices"):
                self._notices.reset()


@asynccontextmanager
async def running_service(settings: Settings, clock: Callable[[], int]) -> AsyncIterator[Service]:
    """The service on its database, while the context lasts. `clock` returns Unix milliseconds.

    Raises SettingsError, SchemaError, UnavailableError.
    """
    url, timeout = settings.database_url, settings.database_timeout.total_seconds()
    path, file = settings.database_url_file, None
    if path and is_postgresql(url):
        file = SecretFile("BLOCKLIST_DATABASE_URL_FILE", path, url, partial(check_renewed, url))
    store = make_store(url, secrets.token_hex(4), timeout, clock, None if file is None else file.read)
    try:
        service = Service(settings, clock, store, await store.open(), file)
        async with service.run():
            yield service
    finally:
        await store.close()


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _change_nothing(_: Draft) -> None:
    """A command whose outcome, like every refusal, follows from all changes in the log."""


async def _finish(what: str, close: Callable[[], Awaitable[None]]) -> None:
    """Close a part at the end; if it fails, or the database is unavailable, the next ones are closed anyway."""
    with isolated(what), suppress(UnavailableError):
        await close()


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
