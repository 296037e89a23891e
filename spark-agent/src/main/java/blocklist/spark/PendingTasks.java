package blocklist.spark;

import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.WeakHashMap;
import org.apache.spark.scheduler.ExecutorCacheTaskLocation;
import org.apache.spark.scheduler.PendingTasksByLocality;
import org.apache.spark.scheduler.Task;
import org.apache.spark.scheduler.TaskLocation;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.apache.spark.scheduler.TaskSetManager;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Makes the tasks that wait for closed hosts, because their data is there, start elsewhere at once. Spark itself waits
 * spark.locality.wait for the executor and once more for the host, in every stage, as long as its lists of pending tasks
 * name them.
 *
 * <p>So closed hosts and executors leave these lists. A task whose data is nowhere else becomes one without a preference,
 * which Spark starts in any free slot. Spark's list of all pending tasks stays as it is, so no task is lost, and neither are
 * the lists of speculative tasks changed: Spark waits for none of these. A stage that has forgotten a host does not prefer it
 * again after the block; the next stage does.
 *
 * <p>If Spark's lists are not as expected, tasks wait as Spark does. Nothing else depends on this class.
 *
 * <p>THREADING: the caller holds the monitor of the scheduler, except for {@code failure}.
 */
final class PendingTasks {
  private static final Logger LOG = LoggerFactory.getLogger("blocklist");
  /** Spark adds a task to its lists again when it has failed. A new stage, or a new plan, is looked at in the next round of offers. */
  private static final long RECHECK_MILLIS = 100;

  private final TaskSchedulerImpl scheduler;
  private final SchedulerState state;
  /** Those that were looked at since {@code plan} came, or since {@code recheckAt} was set. */
  private final Set<TaskSetManager> checked = Collections.newSetFromMap(new WeakHashMap<>());
  private Plan plan = Plan.EMPTY;
  private Set<String> hosts = new HashSet<>();
  private Set<String> executors = new HashSet<>();
  private long recheckAt = 0;
  private Method locations = null;
  private Method append = null;
  private volatile Throwable failure = null;

  PendingTasks(TaskSchedulerImpl scheduler) {
    this.scheduler = scheduler;
    this.state = new SchedulerState(scheduler);
  }

  /** Why tasks wait for closed hosts in this Spark; null if they do not, or if none has been closed yet. */
  Throwable failure() {
    return failure;
  }

  /**
   * Cheap, because Spark calls it in each round of offers: it costs nothing while no host is closed, and looks at each stage
   * ten times a second at most. Throws nothing.
   */
  void forgetClosed(Plan next) {
    if (failure != null || (next == plan && hosts.isEmpty() && executors.isEmpty())) return;
    try {
      if (next != plan) take(next);
      if (hosts.isEmpty() && executors.isEmpty()) return;
      long now = Times.monotonic();
      if (now >= recheckAt) {
        checked.clear();
        recheckAt = now + RECHECK_MILLIS;
      }
      for (TaskSetManager stage : state.queue()) if (checked.add(stage)) forgetClosed(stage);
    } catch (Throwable t) {
      failure = t;
      checked.clear();
      LOG.warn("Tasks may wait for closed hosts where their data is, for spark.locality.wait in each stage: the agent does not know how this Spark keeps its pending tasks.", t);
    }
  }

  private void take(Plan next) {
    plan = next;
    checked.clear();
    hosts = new HashSet<>(next.closedHosts);
    // They get tasks in a moment.
    hosts.removeAll(next.announced);
    hosts.removeAll(next.provisional);
    executors = new HashSet<>(next.closedExecutors.keySet());
    for (String host : hosts) executors.addAll(state.executors(host));
    // A canary has too few slots for all tasks of its host, but keeps those whose data it has itself.
    hosts.addAll(next.closedExecutors.values());
  }

  private void forgetClosed(TaskSetManager stage) throws Exception {
    if (stage.isZombie()) return;
    PendingTasksByLocality pending = stage.pendingTasks();
    BitSet tasks = new BitSet();
    boolean changed = remove(pending.forHost(), hosts, tasks);
    changed |= remove(pending.forExecutor(), executors, tasks);
    if (!changed) return;
    // Spark starts the last of a list first.
    for (int i = tasks.length() - 1; i >= 0; i = tasks.previousSetBit(i - 1))
      if (stage.copiesRunning()[i] == 0 && !stage.successful()[i] && !isNearOpen(stage.tasks()[i])) append(pending.noPrefs(), i);
    stage.recomputeLocality();
  }

  /** Remove these keys, and collect the indexes of the tasks in their lists. */
  private static boolean remove(
    scala.collection.mutable.HashMap<String, scala.collection.mutable.ArrayBuffer<Object>> lists, Set<String> keys, BitSet tasks
  ) {
    boolean changed = false;
    for (String key : lists.size() < keys.size() ? keys(lists) : keys) {
      if (!keys.contains(key)) continue;
      scala.collection.mutable.ArrayBuffer<Object> list = Scala.orNull(lists.remove(key));
      if (list == null) continue;
      changed = true;
      for (Object index : Scala.each(list.iterator())) tasks.set((Integer) index);
    }
    return changed;
  }

  private static Collection<String> keys(scala.collection.mutable.HashMap<String, scala.collection.mutable.ArrayBuffer<Object>> lists) {
    List<String> keys = new ArrayList<>();
    for (scala.Tuple2<String, scala.collection.mutable.ArrayBuffer<Object>> entry : Scala.each(lists.iterator())) keys.add(entry._1());
    return keys;
  }

  /** Whether its data is also on an open host, or in an open executor, where it may start. */
  private boolean isNearOpen(Task<?> task) throws Exception {
    // Its type is another one in Scala 2.12.
    if (locations == null) locations = Task.class.getMethod("preferredLocations");
    scala.collection.Seq<?> found = (scala.collection.Seq<?>) locations.invoke(task);
    for (Object each : Scala.each(found.iterator())) {
      TaskLocation location = (TaskLocation) each;
      if (!hosts.contains(location.host()) && scheduler.hasExecutorsAliveOnHost(location.host())) return true;
      if (!(location instanceof ExecutorCacheTaskLocation)) continue;
      String executor = ((ExecutorCacheTaskLocation) location).executorId();
      if (!executors.contains(executor) && scheduler.isExecutorAlive(executor)) return true;
    }
    return false;
  }

  private void append(scala.collection.mutable.ArrayBuffer<Object> list, int index) throws Exception {
    // It returns another type in Scala 2.12.
    if (append == null) append = scala.collection.mutable.ArrayBuffer.class.getMethod("$plus$eq", Object.class);
    append.invoke(list, index);
  }
}
