package blocklist.spark;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/**
 * What the driver cannot know about tasks: whether the processes of a lost executor have ended, such as its Python
 * workers, and whether a killed task has left some behind. Reported as unknown, for LOST_MILLIS, and for SETTLE_MILLIS
 * after a killed task was last seen. If more than MAX_LOST executors are lost, the others are only counted, and any node
 * may have been theirs.
 *
 * <p>The caller passes the time in milliseconds by a clock that never goes back. THREADING: the caller holds the monitor
 * of the scheduler. Memory: the executors with tasks, and MAX_LOST.
 */
final class UnknownTasks {
  static final long LOST_MILLIS = 600000;
  static final long SETTLE_MILLIS = 5000;
  static final int MAX_LOST = 1000;

  private static final class Lost {
    final Executor executor;
    /** Of its host; null if they were not known. */
    final String[] names;
    final int tasks;
    final long at;
    final String since = Times.utc(System.currentTimeMillis());

    Lost(Executor executor, String[] names, long at) {
      this.at = at;
      this.executor = executor.withUnknownTasks();
      this.names = names;
      this.tasks = executor.running;
    }
  }

  private final HostDirectory directory;
  /** Executors with tasks, by id, when they were last seen. */
  private Map<String, Executor> busy = new HashMap<>();
  private final Map<String, Lost> lost = new LinkedHashMap<>();
  /** Executor to the time at which a killed task was last seen on it. */
  private final Map<String, Long> killedAt = new HashMap<>();
  /** How many executors were lost beyond MAX_LOST; when the first and the last of them were. */
  private int further = 0;
  private String furtherSince = "";
  private long furtherAt = 0;
  /** Those of them that the scheduler still lists. */
  private final Set<String> furtherIds = new HashSet<>();

  UnknownTasks(HostDirectory directory) {
    this.directory = directory;
  }

  /** A task on this executor is to be killed, or has been and still runs. */
  void onKilledTask(String executor, long now) {
    killedAt.put(executor, now);
  }

  /** {@code withTasks} is the executor, if its stages know of tasks that were lost with it; else null. */
  void onRemoved(String executor, Executor withTasks, long now) {
    Executor known = busy.remove(executor);
    if (withTasks != null) known = withTasks;
    if (known == null) return;
    if (lost.containsKey(executor) || lost.size() < MAX_LOST) {
      lost.put(executor, new Lost(known, directory.executorNames(executor, known.host), now));
      return;
    }
    if (further == 0) furtherSince = Times.utc(System.currentTimeMillis());
    further++;
    furtherAt = now;
    furtherIds.add(executor);
  }

  /** The executors with what is known about their tasks, and the lost ones. */
  List<Executor> observe(List<Executor> executors, long now) {
    if (further > 0 && now - furtherAt >= LOST_MILLIS) {
      further = 0;
      furtherIds.clear();
    }
    busy = new HashMap<>();
    List<Executor> known = new ArrayList<>();
    Collection<String> ids = new HashSet<>();
    for (Executor executor : executors) {
      ids.add(executor.id);
      // On YARN it is listed, without tasks, until YARN says why it was lost.
      if (lost.containsKey(executor.id)) continue;
      if (executor.running > 0) busy.put(executor.id, executor);
      boolean unknown = executor.running == 0 && (isSettling(executor.id, now) || furtherIds.contains(executor.id));
      known.add(unknown ? executor.withUnknownTasks() : executor);
    }
    killedAt.keySet().retainAll(ids);
    furtherIds.retainAll(ids);
    lost.values().removeIf(one -> now - one.at >= LOST_MILLIS);
    for (Lost one : lost.values()) known.add(one.executor);
    return known;
  }

  /**
   * Node id to the reason why its evacuation may not be complete, whether or not its host still has an executor.
   * {@code now} is the wall clock's, as the ends of blocks are.
   */
  Map<String, String> refused(HostExclusions exclusions, long now) {
    Map<String, String> reasons = new TreeMap<>();
    if (further > 0) addFurther(reasons, exclusions.evacuatingIds(now));
    // One for all: Spark's scheduler waits meanwhile.
    HostMatcher matcher = lost.isEmpty() ? null : exclusions.matcher(now);
    for (Lost one : lost.values()) {
      HostBlock block = matcher.blockOfFurther(new LiveHost(one.executor.host, one.executor.node, false, one.names, LiveHost.LONG_AGO));
      if (block == null) continue;
      String reason = "Unknown since " + one.since + ": executor " + one.executor.id + " on host " + one.executor.node
        + " was lost with " + one.tasks + " running tasks, whose processes may still write.";
      for (String each : block.evacuatingIds()) reasons.put(each, reason);
    }
    return reasons;
  }

  private void addFurther(Map<String, String> reasons, Collection<String> ids) {
    String reason = "Unknown since " + furtherSince + ": " + further + " more executors than the " + MAX_LOST
      + " that are remembered were lost with running tasks, and may have been on this node; their processes may still write.";
    for (String each : ids) reasons.put(each, reason);
  }

  private boolean isSettling(String executor, long now) {
    Long at = killedAt.get(executor);
    return at != null && now - at < SETTLE_MILLIS;
  }
}
