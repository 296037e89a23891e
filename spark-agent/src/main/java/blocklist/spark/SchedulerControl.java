package blocklist.spark;

import blocklist.spark.EvidenceCollector.Observation;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The blocklist in the scheduler of one application. After an internal error Spark's own tracker is in place again
 * at once, all hosts are free, nothing is acknowledged, and {@code check} tries again.
 *
 * <p>THREADING: the monitor of the scheduler guards all state. Spark holds it when it calls BlocklistTracker, which calls the
 * last methods here, and nothing may be thrown; all other methods acquire it.
 */
final class SchedulerControl {
  private static final Logger LOG = LoggerFactory.getLogger("blocklist");
  private static final long MAX_RETRY_MILLIS = 30000;

  private final Object agent;
  private final SparkContext sc;
  private final TaskSchedulerImpl scheduler;
  private final TrackerSlot slot;
  private final HostExclusions exclusions;
  private final Evacuation evacuation;
  private final SchedulerState state;
  private final UnknownTasks unknown;
  private final PendingTasks pending;
  private final HostDirectory directory;
  private final Runnable onRefused;
  private final ServiceClock clock;
  private PodPlacementLoop placement = null;
  private BlocklistTracker tracker = null;
  private Throwable failure = null;
  private int failures = 0;
  private long retryAt = 0;
  private boolean closed = false;
  private Mode mode = Mode.APPLY;
  /** Whether what would be done is decided: in the mode OBSERVE, in which the tracker is not in place. */
  private boolean observing = false;

  /** {@code onRefused} is called, with the monitor of the scheduler, when a block is not in force any more: report it. */
  SchedulerControl(SparkContext sc, HostDirectory directory, ServiceClock clock, Object agent, Runnable onRefused) {
    this.clock = clock;
    this.agent = agent;
    this.onRefused = onRefused;
    this.sc = sc;
    this.directory = directory;
    scheduler = (TaskSchedulerImpl) sc.taskScheduler();
    slot = new TrackerSlot(sc, scheduler);
    EvacuationLimit limit = new EvacuationLimit();
    exclusions = new HostExclusions(sc, scheduler, directory, limit, clock, onRefused);
    state = new SchedulerState(scheduler);
    pending = new PendingTasks(scheduler);
    unknown = new UnknownTasks(directory);
    evacuation = new Evacuation(sc, state, limit, unknown);
  }

  /** From now on a revision is in force once it is for new pods, too. */
  void setPlacement(PodPlacementLoop placement) {
    synchronized (scheduler) {
      this.placement = placement;
    }
  }

  /** Unix milliseconds by the clock that the ends of blocks are meant by. */
  long now() {
    return clock.now();
  }

  Placement.Input placementInput() {
    synchronized (scheduler) {
      boolean applies = mode == Mode.APPLY;
      Set<String> registered = new HashSet<>();
      for (scala.Tuple2<String, String> executor : Scala.each(scheduler.executorIdToHost().iterator())) registered.add(executor._1());
      // In the other modes new pods may go to any node.
      Table table = applies ? exclusions.table() : Table.EMPTY;
      return new Placement.Input(table, applies ? exclusions.plan() : Plan.EMPTY, exclusions.liveHosts(), registered);
    }
  }

  /** Put the table in force; on hosts whose names are not known yet, once they are. */
  void apply(Table table) {
    List<Evacuation.Kill> tasks;
    synchronized (scheduler) {
      if (closed) return;
      try {
        exclusions.apply(table);
      } catch (Throwable t) {
        fail(t);
      }
      // Before anybody else can see the table: it is in force only with what the evacuation refuses.
      tasks = decide();
    }
    evacuation.kill(tasks);
  }

  /**
   * Keep so many hosts open from now on. Apart from {@code apply}, because a start and a table may come at the same time,
   * and neither must bring back what the other has replaced.
   */
  void require(int keepHosts, int minNodes) {
    synchronized (scheduler) {
      if (closed) return;
      try {
        exclusions.require(keepHosts, minNodes);
      } catch (Throwable t) {
        fail(t);
      }
    }
    check();
  }

  /** Free all hosts, and go on in this mode. */
  void setMode(Mode next) {
    synchronized (scheduler) {
      if (closed || next == mode) return;
      // Before the first check there is nothing to restore.
      if (tracker != null || observing) release();
      mode = next;
      failure = null;
      if (next == Mode.OFF) exclusions.forget();
    }
    check();
  }

  /** Install the tracker if it is not in place, decide anew if something has changed, and evacuate. */
  void check() {
    List<Evacuation.Kill> tasks;
    synchronized (scheduler) {
      tasks = decide();
    }
    evacuation.kill(tasks);
  }

  /** The tasks to kill, without the monitor of the scheduler. */
  private List<Evacuation.Kill> decide() {
    if (closed || mode == Mode.OFF || sc.isStopped() || (failure != null && Times.monotonic() < retryAt)) return new ArrayList<>();
    try {
      if (!isInPlace()) install();
      exclusions.refreshIfNeeded();
      List<Evacuation.Kill> tasks = new ArrayList<>();
      if (!observing) tasks = evacuation.tasksToKill(exclusions.plan(), Times.monotonic());
      exclusions.refuseLimited();
      if (failure != null) LOG.info("The agent works again.");
      failure = null;
      failures = 0;
      return tasks;
    } catch (Throwable t) {
      fail(t);
      return new ArrayList<>();
    }
  }

  /** The refusals of this plan have been reported. */
  void onReported(Plan reported) {
    if (reported.announced.isEmpty()) return;
    synchronized (scheduler) {
      if (closed || !isInPlace()) return;
      try {
        exclusions.onReported(reported);
      } catch (Throwable t) {
        fail(t);
      }
    }
  }

  /** Decide anew: the names of a host have become known. */
  void onNamesResolved() {
    synchronized (scheduler) {
      if (closed || !isInPlace()) return;
      try {
        exclusions.refresh(clock.now());
      } catch (Throwable t) {
        fail(t);
      }
    }
  }

  /** Free all hosts and restore Spark's own tracker, for good. */
  void close() {
    synchronized (scheduler) {
      if (closed) return;
      closed = true;
      if (!sc.isStopped()) release();
    }
  }

  Snapshot snapshot() {
    synchronized (scheduler) {
      boolean working = !closed && failure == null && (isInPlace() || mode == Mode.OFF);
      String reason = working || closed ? null : "The agent failed and tries again: " + (failure == null ? "its tracker was replaced" : failure) + ".";
      long now = clock.now();
      evacuation.observe(Times.monotonic());
      List<Executor> executors = unknown.observe(state.executors(directory), Times.monotonic());
      if (mode == Mode.OFF) return new Snapshot(-1, Table.EMPTY, Plan.EMPTY, new TreeMap<>(), executors, null, mode);
      Placement.Status pods = placement == null || observing ? Placement.Status.OFF : placement.status();
      boolean inForce = working && pods.isInForce(exclusions.table(), exclusions.plan(), now);
      Map<String, String> refused = new TreeMap<>(pods.refused(exclusions.table(), now));
      refused.putAll(exclusions.unknown(now));
      refused.putAll(unknown.refused(exclusions, now));
      refused.putAll(exclusions.plan().refused);
      return new Snapshot(inForce ? exclusions.revisionInForce() : -1, exclusions.table(), exclusions.plan(), refused, executors, reason, mode);
    }
  }

  /** The hosts that Spark's own tracker excludes for the application. */
  List<Observation> ownExclusions() {
    synchronized (scheduler) {
      return tracker == null || tracker.own() == null ? new ArrayList<>() : SchedulerState.exclusions(tracker.own());
    }
  }

  /** Before each round of resource offers. */
  void beforeOffers() {
    if (closed || failure != null) return;
    try {
      exclusions.refreshIfNeeded();
    } catch (Throwable t) {
      // Thrown from here it would stop the scheduler.
      fail(t);
      return;
    }
    pending.forgetClosed(exclusions.plan());
  }

  boolean excludes(String host) {
    return exclusions.excludes(host);
  }

  /** Whether an executor gets no tasks although its host may. */
  boolean excludesExecutor(String executor) {
    return exclusions.excludesExecutor(executor);
  }

  /** Whether a host that is excluded now will be opened without anybody's doing. */
  boolean willOpen() {
    return exclusions.willOpen();
  }

  void executorRemoved(String executor) {
    exclusions.executorRemoved();
    try {
      unknown.onRemoved(executor, state.lostWithTasks(executor, directory), Times.monotonic());
    } catch (Throwable t) {
      fail(t);
    }
  }

  /** Whether tasks wait for closed hosts, because this Spark's pending tasks are not as expected. */
  boolean waitsForClosedHosts() {
    return pending.failure() != null;
  }

  Object agent() {
    return agent;
  }

  private boolean isInPlace() {
    return observing || (tracker != null && slot.isInstalled(tracker));
  }

  private void install() throws Exception {
    if (mode == Mode.OBSERVE) {
      exclusions.begin(slot.own(), true, true);
      observing = true;
      return;
    }
    tracker = new BlocklistTracker(sc, slot.own(), this);
    slot.install(tracker);
    exclusions.begin(tracker.own(), slot.isWithoutFailureHandling(), false);
  }

  private void fail(Throwable t) {
    if (failure == null) LOG.warn("The agent failed; no host is blocked until it works again.", t);
    failure = t;
    failures++;
    retryAt = Times.monotonic() + Math.min(MAX_RETRY_MILLIS, 500L << Math.min(failures, 10));
    release();
    onRefused.run();
  }

  private void release() {
    try {
      slot.restore();
    } catch (Throwable t) {
      LOG.warn("Spark's own tracker cannot be restored; the agent's one asks it, and blocks nothing.", t);
    }
    try {
      exclusions.clear();
    } catch (Throwable t) {
      LOG.debug("Spark was not told that hosts are free.", t);
    }
    tracker = null;
    observing = false;
  }
}
