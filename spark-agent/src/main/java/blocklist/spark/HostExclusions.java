package blocklist.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.HealthTracker;
import org.apache.spark.scheduler.TaskSchedulerImpl;

/**
 * Keeps the hosts that get no tasks in line with the table, the live hosts and their names.
 *
 * <p>THREADING: the caller holds the monitor of the scheduler, except for {@code excludes} and {@code excludesExecutor}.
 */
final class HostExclusions {
  /** How long a host stays open that was opened for a task that could run nowhere else. */
  private static final long REQUIRED_MILLIS = 10000;
  private static final long REFRESH_MILLIS = 1000;
  /** How long the opening of a host waits for the report of its refusal. */
  private static final long ANNOUNCE_MILLIS = 1000;
  /** One more than can be reported: so many are not acknowledged. */
  private static final int MAX_UNKNOWN = Report.MAX_REFUSED + 1;

  private final SparkContext sc;
  private final SchedulerState state;
  private final HostDirectory directory;
  private final EvacuationLimit limit;
  private final ExclusionEvents events;
  private final Canaries canaries = new Canaries();
  private final Runnable onRefused;
  private final ServiceClock clock;

  private HealthTracker own = null;
  private boolean withoutFailureHandling = true;
  /** Whether the plan is only what would be: Spark does not ask for it, and is told nothing. */
  private boolean observing = false;
  private Table table = Table.EMPTY;
  private int keepHosts = 1;
  private int minNodes = 0;
  private volatile Plan plan = Plan.EMPTY;
  /** Host to whether Spark itself offers it tasks. */
  private Map<String, Boolean> live = new HashMap<>();
  private List<LiveHost> liveHosts = new ArrayList<>();
  /** Host to the time in Unix ms, by the service's clock, at which its first executor came, and to the node that it was on then, if known. */
  private Map<String, Long> joined = new HashMap<>();
  private Map<String, String> nodes = new HashMap<>();
  /** Host to the time until which it stays open, by the monotonic clock. */
  private final Map<String, Long> requiredUntil = new HashMap<>();
  /** Host that will be opened to the time at which it is, reported or not, by the monotonic clock. */
  private final Map<String, Long> announced = new HashMap<>();
  private boolean first = true;
  private long removals = 0;
  private long nextRefresh = 0;
  private String seen = "";

  /** {@code onRefused} is called when a block is refused that was not before. */
  HostExclusions(
    SparkContext sc, TaskSchedulerImpl scheduler, HostDirectory directory, EvacuationLimit limit, ServiceClock clock, Runnable onRefused
  ) {
    this.sc = sc;
    this.clock = clock;
    this.onRefused = onRefused;
    this.state = new SchedulerState(scheduler);
    this.directory = directory;
    this.limit = limit;
    this.events = new ExclusionEvents(sc);
  }

  /** Begin, with Spark's own tracker, which may be null. Hosts that are there already are not held back. */
  void begin(HealthTracker own, boolean withoutFailureHandling, boolean observing) throws Exception {
    this.own = own;
    this.withoutFailureHandling = withoutFailureHandling;
    this.observing = observing;
    first = true;
    refresh(clock.now());
  }

  /** There is no list any more. */
  void forget() {
    table = Table.EMPTY;
  }

  void apply(Table table) throws Exception {
    this.table = table;
    refresh(clock.now());
  }

  void require(int keepHosts, int minNodes) throws Exception {
    this.keepHosts = keepHosts;
    this.minNodes = minNodes;
    refresh(clock.now());
  }

  /** Free all hosts. */
  void clear() {
    Plan before = plan;
    boolean freed = !before.covered.isEmpty() || !before.held.isEmpty();
    plan = Plan.EMPTY;
    announced.clear();
    if (observing) return;
    for (String each : before.closedHosts) events.freed(each, own);
    events.excludedExecutors(plan.closedExecutors, own);
    if (freed) sc.schedulerBackend().reviveOffers();
  }

  boolean excludes(String host) {
    return plan.excludes(host);
  }

  boolean excludesExecutor(String executor) {
    return plan.excludesExecutor(executor);
  }

  /** Whether a host will be opened: Spark needs to do nothing for tasks that can run nowhere at the moment. */
  boolean willOpen() {
    return !plan.announced.isEmpty() || !plan.provisional.isEmpty();
  }

  /** The refusals of this plan have been reported: its hosts may be opened. */
  void onReported(Plan reported) throws Exception {
    boolean waits = false;
    for (String each : reported.announced) waits |= announced.replace(each, 0L) != null;
    if (waits) refresh(clock.now());
  }

  /** What EvacuationLimit has kept since the plan was made is refused at once, in one step with the rest of the table. */
  void refuseLimited() throws Exception {
    for (LiveHost host : liveHosts) {
      if (host.reachedEvacuationLimit == limit.isReachedOn(host.name)) continue;
      refresh(clock.now());
      return;
    }
  }

  void executorRemoved() {
    removals++;
  }

  Table table() {
    return table;
  }

  Plan plan() {
    return plan;
  }

  /** LiveHosts, as of the plan. */
  List<LiveHost> liveHosts() {
    return liveHosts;
  }

  /**
   * The revision of the table if it is in force on all live hosts, apart from what is refused; -1 while the names of one
   * are not known, or while it is not known whether one is to be opened.
   */
  long revisionInForce() {
    if (!plan.held.isEmpty() || !plan.provisional.isEmpty()) return -1;
    for (String host : live.keySet()) {
      if (directory.names(host) == null && directory.isPending(host)) return -1;
    }
    return table.revision;
  }

  /**
   * Milliseconds since when it is not known which ids mean this host, although tasks run there, or may soon; else 0. What
   * was acknowledged before may not be so there.
   */
  private long unknownMillis(String host) {
    long millis = directory.overdue(host);
    if (millis > 0 || directory.names(host) != null || plan.held.contains(host)) return millis;
    return plan.excludes(host) && !state.isBusy(host) ? 0 : 1;
  }

  /**
   * Node id to the reason why it is not known whether it means a live host: the names of that host do not become known.
   * If its own name is one of its machine, only keys of the other kind can mean it: addresses for a host with a name,
   * names for one with an address.
   */
  Map<String, String> unknown(long now) {
    Map<String, String> reasons = new TreeMap<>();
    boolean namesDone = false;
    boolean addressesDone = false;
    for (String host : live.keySet()) {
      long millis = unknownMillis(host);
      boolean isAddress = HostNames.address(host) != null;
      // One host is reason enough: the scheduler waits meanwhile.
      boolean byName = isAddress || !directory.namesMachines();
      boolean byAddress = !isAddress || !directory.namesMachines();
      if (millis == 0 || ((namesDone || !byName) && (addressesDone || !byAddress))) continue;
      String reason = "Unknown since " + Times.utc(now - millis) + " whether this is host " + host + ", " + directory.overdueReason() + ".";
      if (byName) putAll(reasons, table.idsOfNames, reason);
      if (byAddress) putAll(reasons, table.idsOfAddresses, reason);
      namesDone |= byName;
      addressesDone |= byAddress;
    }
    for (HostBlock block : plan.matched.values()) reasons.remove(block.id);
    return reasons;
  }

  private static void putAll(Map<String, String> reasons, List<String> ids, String reason) {
    for (String id : ids) {
      if (reasons.size() >= MAX_UNKNOWN) return;
      reasons.put(id, reason);
    }
  }

  /** The ids of which an evacuation is in force in the table. */
  Set<String> evacuatingIds(long now) {
    Set<String> ids = new HashSet<>();
    for (Table.Entry entry : table.entries().values()) {
      if (ids.size() >= MAX_UNKNOWN) break;
      if (entry.action == Table.Entry.EVACUATE && !entry.ended(now)) ids.add(entry.id);
    }
    return ids;
  }

  /** For hosts that are not live any more: it knows those that are. */
  HostMatcher matcher(long now) {
    return new HostMatcher(table, liveHosts, now);
  }

  /** Cheap, because Spark calls it in each round of offers: refreshes after a change, or once a second. */
  void refreshIfNeeded() throws Exception {
    long now = clock.now();
    String moved = state.executorCount() + " " + removals + " " + directory.version();
    if (own != null)
      moved += " " + own.nodeIdToExcludedExpiryTime().size() + " " + own.executorIdToExcludedStatus().size() + " " + own.nextExpiryTime();
    if (now >= nextRefresh || now < nextRefresh - REFRESH_MILLIS || !moved.equals(seen)) {
      seen = moved;
      refresh(now);
    }
    if (!withoutFailureHandling && !plan.covered.isEmpty()) openForUnschedulableTasks(now);
  }

  void refresh(long now) throws Exception {
    nextRefresh = now + REFRESH_MILLIS;
    Map<String, Boolean> before = live;
    live = state.liveHosts(own);
    directory.retain(live.keySet());
    requiredUntil.keySet().retainAll(live.keySet());
    noteJoined(now);
    int needed = table.ended(now) ? 0 : state.barrierSlotsNeeded();
    Map<String, Integer> slots = needed == 0 ? new HashMap<>() : state.slots();
    Map<String, Integer> profiles = table.hasCanaries ? state.resourceProfiles() : new HashMap<>();
    Set<String> barrierHosts = table.ended(now) ? new HashSet<>() : state.barrierHosts();
    List<LiveHost> hosts = new ArrayList<>();
    for (String name : live.keySet()) {
      LiveHost host = new LiveHost(name, node(name), live.get(name), directory.names(name), joined.get(name));
      host.holdMillis = directory.holdMillis();
      host.required = isRequired(name);
      host.executors = state.executors(name);
      host.slots = sum(slots, host.executors);
      if (table.hasCanaries) host.usableExecutors = state.usable(host.executors, name, own, profiles);
      host.runsBarrierTasks = barrierHosts.contains(name);
      host.busy = state.isBusy(name);
      // One that runs tasks is opened at once: if no executor is idle, Spark aborts the job.
      host.unannounced = !host.busy && plan.covered.containsKey(name) && !isAnnounced(name);
      host.reachedEvacuationLimit = limit.isReachedOn(name);
      hosts.add(host);
    }
    canaries.choose(hosts);
    for (LiveHost host : hosts) {
      host.canarySlots = sum(slots, host.canaries);
    }
    liveHosts = hosts;
    boolean continuous = !table.ended(now) && state.hasContinuousQuery();
    replace(Plan.make(table, hosts, new Plan.Requirements(keepHosts, minNodes, needed, continuous), now), before);
  }

  private static int sum(Map<String, Integer> slots, List<String> executors) {
    return executors.stream().mapToInt(each -> slots.getOrDefault(each, 0)).sum();
  }

  private String node(String host) {
    String node = directory.node(host);
    return node == null ? host : node;
  }

  /** A host whose name has become another machine's has joined anew. */
  private void noteJoined(long now) {
    Map<String, Long> next = new HashMap<>();
    Map<String, String> nextNodes = new HashMap<>();
    for (String host : live.keySet()) {
      String node = directory.node(host);
      String before = nodes.get(host);
      Long at = before == null || before.equals(node) ? joined.get(host) : null;
      next.put(host, at != null ? at : Long.valueOf(first ? LiveHost.LONG_AGO : now));
      nextNodes.put(host, node);
    }
    joined = next;
    nodes = nextNodes;
    first = false;
  }

  private boolean isRequired(String host) {
    Long until = requiredUntil.get(host);
    if (until != null && Times.monotonic() >= until) requiredUntil.remove(host);
    return requiredUntil.containsKey(host);
  }

  private boolean isAnnounced(String host) {
    Long until = announced.get(host);
    return until != null && Times.monotonic() >= until;
  }

  private void announce(Plan next) {
    announced.keySet().retainAll(next.announced);
    for (String each : next.announced) announced.putIfAbsent(each, Times.monotonic() + ANNOUNCE_MILLIS);
  }

  private void replace(Plan next, Map<String, Boolean> liveBefore) {
    Plan before = plan;
    announce(next);
    boolean freed = !next.held.containsAll(before.held) || !next.closedExecutors.keySet().containsAll(before.closedExecutors.keySet());
    plan = next;
    nextRefresh = Math.min(nextRefresh, next.validUntil);
    if (observing) return;
    for (String host : before.closedHosts) {
      if (next.closedHosts.contains(host)) continue;
      freed = true;
      events.freed(host, own);
    }
    events.excludedExecutors(next.closedExecutors, own);
    for (String host : next.closedHosts) {
      // Spark's own tracker has just shown the host as free, but it is still blocked.
      boolean shownFree = Boolean.FALSE.equals(liveBefore.get(host)) && Boolean.TRUE.equals(live.get(host));
      if (!before.closedHosts.contains(host) || shownFree) events.excluded(host, own);
    }
    if (!before.refused.keySet().containsAll(next.refused.keySet())) onRefused.run();
    if (freed) sc.schedulerBackend().reviveOffers();
  }

  /** A task that has failed on all open hosts costs the whole job: the weakest block gives way. */
  private void openForUnschedulableTasks(long now) throws Exception {
    for (int i = plan.covered.size(); i > 0 && state.hasUnschedulableTask(); i--) {
      String weakest = weakestOpen();
      if (weakest == null) return;
      requiredUntil.put(weakest, Times.monotonic() + REQUIRED_MILLIS);
      refresh(now);
    }
  }

  private String weakestOpen() {
    for (String host : plan.covered.keySet()) {
      // Not one whose executors all get tasks already.
      boolean canOpen = plan.excludes(host) || plan.closedExecutors.containsValue(host);
      if (canOpen && Boolean.TRUE.equals(live.get(host))) return host;
    }
    return null;
  }
}
