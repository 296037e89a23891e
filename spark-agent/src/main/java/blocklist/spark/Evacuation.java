package blocklist.spark;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.SparkContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Kills the tasks on evacuated hosts; Spark restarts them elsewhere, and does not count them as failed. A task that still
 * runs is killed again every KILL_AGAIN_MILLIS: Spark does not interrupt a task that is about to start, and code may
 * swallow an interrupt. The executor stays, because its shuffle files may be needed. Tasks of barrier stages are left
 * alone, because a killed one fails the job, and so is what EvacuationLimit keeps.
 *
 * <p>THREADING: the caller holds the monitor of the scheduler, except for {@code kill}. Memory: the running tasks that
 * have been killed, and EvacuationLimit.
 */
final class Evacuation {
  static final long KILL_AGAIN_MILLIS = 5000;
  private static final Logger LOG = LoggerFactory.getLogger("blocklist.spark");
  private final SparkContext sc;
  private final SchedulerState state;
  private final EvacuationLimit limit;
  private final UnknownTasks unknown;
  /* Task to when it was last killed. */
  private final Map killed = new ConcurrentHashMap();

  Evacuation(SparkContext sc, SchedulerState state, EvacuationLimit limit, UnknownTasks unknown) {
    this.sc = sc;
    this.state = state;
    this.limit = limit;
    this.unknown = unknown;
  }

  /** Pairs of RunningTask and HostBlock. */
  List tasksToKill(Plan plan, long now) {
    List pairs = new ArrayList();
    limit.update(plan.evacuated, now);
    if (killed.isEmpty() && plan.evacuated.isEmpty()) return pairs;
    List tasks = state.tasks();
    observe(tasks, now);
    for (Iterator it = tasks.iterator(); it.hasNext();) {
      RunningTask task = (RunningTask) it.next();
      if (!plan.evacuated.contains(task.host) || task.isBarrier()) continue;
      Long last = (Long) killed.get(task.id);
      if (last == null ? !limit.take(task.key(), task.host) : now - last.longValue() < KILL_AGAIN_MILLIS) continue;
      killed.put(task.id, Long.valueOf(now));
      unknown.onKilledTask(task.executor, now);
      pairs.add(new Object[] {task, plan.covered.get(task.host)});
    }
    return pairs;
  }

  /** See which of the killed tasks still run: what they leave behind settles only after they have ended. */
  void observe(long now) {
    if (!killed.isEmpty()) observe(state.tasks(), now);
  }

  private void observe(List tasks, long now) {
    Set running = new HashSet();
    for (Iterator it = tasks.iterator(); it.hasNext();) {
      RunningTask task = (RunningTask) it.next();
      running.add(task.id);
      if (killed.containsKey(task.id)) unknown.onKilledTask(task.executor, now);
    }
    killed.keySet().retainAll(running);
  }

  void kill(List pairs) {
    for (Iterator it = pairs.iterator(); it.hasNext();) {
      Object[] pair = (Object[]) it.next();
      kill((RunningTask) pair[0], (HostBlock) pair[1]);
    }
  }

  private void kill(RunningTask task, HostBlock block) {
    try {
      sc.killTaskAttempt(task.id.longValue(), true, "host is blocked as " + block.id + ": " + block.cause);
    } catch (RuntimeException e) {
      LOG.warn("Task {} on {} cannot be killed, and is killed again with the next check.", new Object[] {task.id, task.host, e});
      killed.remove(task.id);
    }
  }
}
