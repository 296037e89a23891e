package blocklist.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/**
 * What the driver cannot know about tasks: whether the processes of a lost executor have ended, such as its Python
 * workers, and whether a killed task has left some behind. Reported as unknown, for LOST_MILLIS and SETTLE_MILLIS.
 *
 * <p>THREADING: the caller holds the monitor of the scheduler. Memory: the executors with tasks, and MAX_LOST.
 */
final class UnknownTasks {
  static final long LOST_MILLIS = 600000;
  static final long SETTLE_MILLIS = 5000;
  private static final int MAX_LOST = 1000;

  private static final class Lost {
    final Executor executor;
    /** Of its host; null if they were not known. */
    final String[] names;
    final int tasks;
    final long at;

    Lost(Executor executor, String[] names, long at) {
      this.executor = executor.withUnknownTasks();
      this.names = names;
      this.tasks = executor.running;
      this.at = at;
    }
  }

  private final HostResolver resolver;
  /** Executors with tasks, by id, when they were last seen. */
  private Map busy = new HashMap();
  private final Map lost = new LinkedHashMap();
  /** Executor to the time of the last kill on it. */
  private final Map killedAt = new HashMap();

  UnknownTasks(HostResolver resolver) {
    this.resolver = resolver;
  }

  void onKill(String executor, long now) {
    killedAt.put(executor, Long.valueOf(now));
  }

  void onRemoved(String executor, long now) {
    Executor known = (Executor) busy.remove(executor);
    if (known != null && lost.size() < MAX_LOST) lost.put(executor, new Lost(known, resolver.names(known.host), now));
  }

  /** The executors with what is known about their tasks, and the lost ones. */
  List observe(List executors, long now) {
    busy = new HashMap();
    List known = new ArrayList();
    Set ids = new HashSet();
    for (Iterator it = executors.iterator(); it.hasNext();) {
      Executor executor = (Executor) it.next();
      ids.add(executor.id);
      if (executor.running > 0) busy.put(executor.id, executor);
      known.add(executor.running == 0 && isSettling(executor.id, now) ? executor.withUnknownTasks() : executor);
    }
    killedAt.keySet().retainAll(ids);
    for (Iterator it = lost.values().iterator(); it.hasNext();) {
      Lost one = (Lost) it.next();
      if (now - one.at >= LOST_MILLIS || ids.contains(one.executor.id)) it.remove();
      else known.add(one.executor);
    }
    return known;
  }

  /** Node id to the reason why its evacuation may not be complete, whether or not its host still has an executor. */
  Map refused(HostExclusions exclusions, long now) {
    Map reasons = new TreeMap();
    for (Iterator it = lost.values().iterator(); it.hasNext();) {
      Lost one = (Lost) it.next();
      HostBlock block = exclusions.blockOf(one.executor.host, one.names, now);
      if (block == null) continue;
      String reason = "Unknown since " + Times.utc(one.at) + ": executor " + one.executor.id + " on host " + one.executor.host
        + " was lost with " + one.tasks + " running tasks, whose processes may still write.";
      for (Iterator ids = block.evacuatingIds().iterator(); ids.hasNext();) reasons.put(ids.next(), reason);
    }
    return reasons;
  }

  private boolean isSettling(String executor, long now) {
    Long at = (Long) killedAt.get(executor);
    return at != null && now - at.longValue() < SETTLE_MILLIS;
  }
}
