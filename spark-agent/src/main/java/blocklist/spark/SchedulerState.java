package blocklist.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.spark.ExecutorAllocationClient;
import org.apache.spark.scheduler.HealthTracker;
import org.apache.spark.scheduler.TaskInfo;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.apache.spark.scheduler.TaskSetExcludelist;
import org.apache.spark.scheduler.TaskSetManager;

/** Reads the scheduler's state. THREADING: the caller holds the monitor of the scheduler. */
final class SchedulerState {
  /** Set by Spark's ContinuousExecution for the stages of its query. */
  private static final String CONTINUOUS = "__is_continuous_processing";

  private static final long JUST_NOW_MILLIS = 1000;

  private final TaskSchedulerImpl scheduler;

  SchedulerState(TaskSchedulerImpl scheduler) {
    this.scheduler = scheduler;
  }

  /** Number of known executors, also of those that have no task. */
  int executorCount() {
    return scheduler.executorIdToHost().size();
  }

  /** Hosts with a live executor: name to whether Spark itself offers it tasks, according to its own tracker. */
  Map liveHosts(HealthTracker own) {
    Map hosts = new HashMap();
    scala.collection.Iterator it = scheduler.hostToExecutors().iterator();
    while (it.hasNext()) {
      scala.Tuple2 entry = (scala.Tuple2) it.next();
      String host = (String) entry._1();
      if (!scheduler.hasExecutorsAliveOnHost(host) || !hasActiveExecutor((scala.collection.mutable.HashSet) entry._2())) continue;
      hosts.put(host, Boolean.valueOf(!excludes(own, host, (scala.collection.mutable.HashSet) entry._2())));
    }
    return hosts;
  }

  /** Whether Spark may start tasks on one of them: it knows those that it has killed for seconds after their end. */
  private boolean hasActiveExecutor(scala.collection.mutable.HashSet executors) {
    scala.collection.Iterator it = executors.iterator();
    while (it.hasNext()) if (isActive((String) it.next())) return true;
    return false;
  }

  private boolean isActive(String executor) {
    if (!(scheduler.backend() instanceof ExecutorAllocationClient)) return true;
    // The backend's lock is taken within the scheduler's, as in CoarseGrainedSchedulerBackend.withLock.
    return ((ExecutorAllocationClient) scheduler.backend()).isExecutorActive(executor);
  }

  /** The ids of a host's executors. */
  List executors(String host) {
    List ids = new ArrayList();
    scala.Option executors = scheduler.hostToExecutors().get(host);
    if (executors.isEmpty()) return ids;
    scala.collection.Iterator it = ((scala.collection.mutable.HashSet) executors.get()).iterator();
    while (it.hasNext()) ids.add(it.next());
    return ids;
  }

  /**
   * Those of these executors of a host on which Spark may start tasks, also according to its own tracker, to the ids of their
   * resource profiles.
   */
  Map usable(List executors, String host, HealthTracker own, Map profiles) {
    Map usable = new HashMap();
    for (Iterator it = executors.iterator(); it.hasNext();) {
      String id = (String) it.next();
      if (isActive(id) && !ownExcludes(own, host, id)) usable.put(id, profiles.get(id));
    }
    return usable;
  }

  static boolean ownExcludes(HealthTracker own, String host, String executor) {
    return own != null && (own.isNodeExcluded(host) || own.isExecutorExcluded(executor));
  }

  /** Whether an executor of this host runs tasks. */
  boolean isBusy(String host) {
    scala.Option executors = scheduler.hostToExecutors().get(host);
    if (executors.isEmpty()) return false;
    scala.collection.Iterator it = ((scala.collection.mutable.HashSet) executors.get()).iterator();
    while (it.hasNext()) if (scheduler.isExecutorBusy((String) it.next())) return true;
    return false;
  }

  private static boolean excludes(HealthTracker own, String host, scala.collection.mutable.HashSet executors) {
    if (own == null) return false;
    if (own.isNodeExcluded(host)) return true;
    scala.collection.Iterator it = executors.iterator();
    while (it.hasNext()) if (!own.isExecutorExcluded((String) it.next())) return false;
    return true;
  }

  /** Observations: the hosts that this tracker excludes for the application. */
  static List exclusions(HealthTracker tracker) {
    List found = new ArrayList();
    long now = System.currentTimeMillis();
    scala.collection.Iterator it = tracker.nodeIdToExcludedExpiryTime().iterator();
    while (it.hasNext()) {
      scala.Tuple2 entry = (scala.Tuple2) it.next();
      if (((Long) entry._2()).longValue() > now) found.add(new Observation(Observation.APPLICATION, (String) entry._1(), "", -1));
    }
    return found;
  }

  /** The hosts on which tasks of barrier stages run. */
  Set barrierHosts() {
    Set hosts = new HashSet();
    if (!hasBarrierStage()) return hosts;
    for (Iterator it = tasks().iterator(); it.hasNext();) {
      RunningTask task = (RunningTask) it.next();
      if (task.isBarrier()) hosts.add(task.host);
    }
    return hosts;
  }

  private boolean hasBarrierStage() {
    for (Iterator it = stages().iterator(); it.hasNext();) if (((TaskSetManager) it.next()).isBarrier()) return true;
    return false;
  }

  /** Whether a continuous query runs: Spark does not restart its tasks. */
  boolean hasContinuousQuery() {
    for (Iterator it = stages().iterator(); it.hasNext();) {
      Properties properties = ((TaskSetManager) it.next()).taskSet().properties();
      if (properties != null && "true".equals(properties.getProperty(CONTINUOUS))) return true;
    }
    return false;
  }

  /** TaskSetManagers with waiting or running tasks. Spark's queue lacks those whose tasks have all been started. */
  private Set stages() {
    Set stages = new HashSet(scheduler.taskIdToTaskSetManager().values());
    scala.collection.Iterator it = scheduler.rootPool().getSortedTaskSetQueue().iterator();
    while (it.hasNext()) stages.add(it.next());
    return stages;
  }

  /** All known Executors with the number of their running tasks, and with the nodes that {@code directory} knows. */
  List executors(HostDirectory directory) {
    Map running = new HashMap();
    scala.collection.Iterator tasks = scheduler.taskIdToExecutorId().iterator();
    while (tasks.hasNext()) {
      Object executor = ((scala.Tuple2) tasks.next())._2();
      Integer before = (Integer) running.get(executor);
      running.put(executor, Integer.valueOf(before == null ? 1 : before.intValue() + 1));
    }
    List executors = new ArrayList();
    scala.collection.Iterator it = scheduler.executorIdToHost().iterator();
    while (it.hasNext()) {
      scala.Tuple2 entry = (scala.Tuple2) it.next();
      Integer count = (Integer) running.get(entry._1());
      String host = (String) entry._2();
      String node = directory.executorNode((String) entry._1(), host);
      executors.add(new Executor((String) entry._1(), host, node == null ? host : node, count == null ? 0 : count.intValue()));
    }
    return executors;
  }

  /**
   * An executor that has just been removed, with the number of tasks that were lost with it; null if there were none.
   * Spark has forgotten that they ran, but their stages have not: there they still run, if YARN has not said yet why the
   * executor was lost, or have failed just now.
   */
  Executor lostWithTasks(String executor, HostDirectory directory) {
    String host = null;
    int lost = 0;
    long now = System.currentTimeMillis();
    for (Iterator it = stages().iterator(); it.hasNext();) {
      scala.collection.Iterator infos = ((TaskSetManager) it.next()).taskInfos().valuesIterator();
      while (infos.hasNext()) {
        TaskInfo task = (TaskInfo) infos.next();
        if (!task.executorId().equals(executor)) continue;
        if (task.finished() && (!task.failed() || Math.abs(now - task.finishTime()) >= JUST_NOW_MILLIS)) continue;
        host = task.host();
        lost++;
      }
    }
    if (lost == 0) return null;
    String node = directory.executorNode(executor, host);
    return new Executor(executor, host, node == null ? host : node, lost);
  }

  /** All RunningTasks. */
  List tasks() {
    List tasks = new ArrayList();
    scala.collection.Iterator it = scheduler.taskIdToExecutorId().iterator();
    while (it.hasNext()) {
      scala.Tuple2 entry = (scala.Tuple2) it.next();
      scala.Option host = scheduler.executorIdToHost().get((String) entry._2());
      TaskSetManager stage = (TaskSetManager) scheduler.taskIdToTaskSetManager().get(entry._1());
      if (host.isDefined() && stage != null) tasks.add(new RunningTask((Long) entry._1(), (String) entry._2(), (String) host.get(), stage));
    }
    return tasks;
  }

  /** Whether Spark would abort a stage because one of its tasks is excluded from all hosts: its own check. */
  boolean hasUnschedulableTask() {
    scala.collection.Iterator it = scheduler.rootPool().getSortedTaskSetQueue().iterator();
    while (it.hasNext()) {
      TaskSetManager stage = (TaskSetManager) it.next();
      scala.Option failures = stage.taskSetExcludelistHelperOpt();
      if (failures.isEmpty() || ((TaskSetExcludelist) failures.get()).execToFailures().isEmpty()) continue;
      if (stage.getCompletelyExcludedTaskIfAny(scheduler.hostToExecutors()).isDefined()) return true;
    }
    return false;
  }
}
