package blocklist.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.SparkContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Kills the tasks on evacuated hosts; Spark restarts them elsewhere, and does not count them as failed. The executor stays,
 * because its shuffle files may be needed. Tasks of barrier stages are left alone, because a killed one fails the job, and
 * so is what EvacuationLimit keeps. A task that commits its output gets COMMIT_MILLIS to finish.
 *
 * <p>A task that still runs is killed again. Spark does not interrupt a task that is about to start, so one that had just
 * been launched is killed again after KILL_AGAIN_MILLIS. Any other one was interrupted and may be cleaning up, which another
 * interrupt would break off: only after PATIENCE_MILLIS has its code probably swallowed the interrupt.
 *
 * <p>THREADING: the caller holds the monitor of the scheduler, except for {@code kill}. Memory: the running tasks that
 * have been killed or commit, and EvacuationLimit.
 */
final class Evacuation {
  static final long KILL_AGAIN_MILLIS = 5000;
  static final long PATIENCE_MILLIS = 30000;
  static final long COMMIT_MILLIS = 30000;
  private static final long JUST_LAUNCHED_MILLIS = 10000;
  private static final Logger LOG = LoggerFactory.getLogger("blocklist");
  private final SparkContext sc;
  private final SchedulerState state;
  private final EvacuationLimit limit;
  private final UnknownTasks unknown;
  private final OutputCommits commits;
  /* Task to when it is to be killed again. */
  private final Map<Long, Long> killed = new ConcurrentHashMap<>();
  /* Task to when it was first found committing. */
  private final Map<Long, Long> committing = new HashMap<>();

  /** A task to kill, and the block because of which. */
  static final class Kill {
    private final RunningTask task;
    private final HostBlock block;

    Kill(RunningTask task, HostBlock block) {
      this.task = task;
      this.block = block;
    }
  }

  Evacuation(SparkContext sc, SchedulerState state, EvacuationLimit limit, UnknownTasks unknown) {
    this.sc = sc;
    this.state = state;
    this.limit = limit;
    this.unknown = unknown;
    this.commits = new OutputCommits(sc);
  }

  List<Kill> tasksToKill(Plan plan, long now) {
    List<Kill> kills = new ArrayList<>();
    limit.update(plan.evacuated, now);
    if (killed.isEmpty() && committing.isEmpty() && plan.evacuated.isEmpty()) return kills;
    List<RunningTask> tasks = state.tasks();
    observe(tasks, now);
    for (RunningTask task : tasks) {
      if (!plan.evacuated.contains(task.host) || task.isBarrier() || !isDue(task, now)) continue;
      boolean first = !killed.containsKey(task.id);
      killed.put(task.id, now + (first && isJustLaunched(task) ? KILL_AGAIN_MILLIS : PATIENCE_MILLIS));
      unknown.onKilledTask(task.executor, now);
      kills.add(new Kill(task, plan.covered.get(task.host)));
    }
    return kills;
  }

  private boolean isDue(RunningTask task, long now) {
    Long next = killed.get(task.id);
    if (next != null) return now >= next;
    if (commits.isPermitted(task)) return isOverdue(task, now);
    return limit.take(task.key(), task.host) && commits.deny(task);
  }

  /** Whether a commit takes so long that it may never end: the host is evacuated for a reason. */
  private boolean isOverdue(RunningTask task, long now) {
    committing.putIfAbsent(task.id, now);
    return now - committing.get(task.id) >= COMMIT_MILLIS && limit.take(task.key(), task.host);
  }

  private static boolean isJustLaunched(RunningTask task) {
    return Math.abs(System.currentTimeMillis() - task.launchedAt()) < JUST_LAUNCHED_MILLIS;
  }

  /** See which of the killed tasks still run: what they leave behind settles only after they have ended. */
  void observe(long now) {
    if (!killed.isEmpty() || !committing.isEmpty()) observe(state.tasks(), now);
  }

  private void observe(List<RunningTask> tasks, long now) {
    Set<Long> running = new HashSet<>();
    for (RunningTask task : tasks) {
      running.add(task.id);
      if (killed.containsKey(task.id)) unknown.onKilledTask(task.executor, now);
    }
    killed.keySet().retainAll(running);
    committing.keySet().retainAll(running);
  }

  void kill(List<Kill> kills) {
    for (Kill each : kills) kill(each.task, each.block);
  }

  private void kill(RunningTask task, HostBlock block) {
    try {
      sc.killTaskAttempt(task.id, true, "host is blocked as " + block.id + ": " + block.cause);
    } catch (RuntimeException e) {
      LOG.warn("Task {} on {} cannot be killed, and is killed again with the next check.", task.id, task.host, e);
      killed.remove(task.id);
    }
  }
}
