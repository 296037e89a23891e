package blocklist.spark;

import blocklist.spark.EvidenceCollector.Observation;
import java.math.BigDecimal;
import java.math.RoundingMode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.ExecutorAllocationClient;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.HealthTracker;
import org.apache.spark.scheduler.SchedulerBackend;
import org.apache.spark.scheduler.TaskInfo;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.apache.spark.scheduler.TaskSetExcludelist;
import org.apache.spark.scheduler.TaskSetManager;

/** Reads the scheduler's state. THREADING: the caller holds the monitor of the scheduler. */
final class SchedulerState {
  /** Set by Spark's ContinuousExecution for the stages of its query. */
  private static final String CONTINUOUS = "__is_continuous_processing";
  private static final long JUST_NOW_MILLIS = 1000;
  private static final String BACKEND = "org.apache.spark.scheduler.cluster.CoarseGrainedSchedulerBackend";
  private static final String EXECUTORS = BACKEND.replace('.', '$') + "$$executorDataMap";

  private final TaskSchedulerImpl scheduler;

  SchedulerState(TaskSchedulerImpl scheduler) {
    this.scheduler = scheduler;
  }

  /** Number of known executors, also of those that have no task. */
  int executorCount() {
    return scheduler.executorIdToHost().size();
  }

  /** Hosts with a live executor: name to whether Spark itself offers it tasks, according to its own tracker. */
  Map<String, Boolean> liveHosts(HealthTracker own) {
    Map<String, Boolean> hosts = new HashMap<>();
    for (scala.Tuple2<String, scala.collection.mutable.HashSet<String>> entry : Scala.each(scheduler.hostToExecutors().iterator())) {
      String host = entry._1();
      List<String> executors = executors(host);
      // Spark knows those that it has killed for seconds after their end.
      if (!scheduler.hasExecutorsAliveOnHost(host) || executors.stream().noneMatch(this::isActive)) continue;
      hosts.put(host, executors.stream().anyMatch(each -> !ownExcludes(own, host, each)));
    }
    return hosts;
  }

  /** Whether Spark may start tasks on it. */
  private boolean isActive(String executor) {
    if (!(scheduler.backend() instanceof ExecutorAllocationClient)) return true;
    // The backend's lock is taken within the scheduler's, as in CoarseGrainedSchedulerBackend.withLock.
    return ((ExecutorAllocationClient) scheduler.backend()).isExecutorActive(executor);
  }

  /** The ids of a host's executors. */
  List<String> executors(String host) {
    List<String> ids = new ArrayList<>();
    scala.collection.mutable.HashSet<String> executors = Scala.orNull(scheduler.hostToExecutors().get(host));
    if (executors != null) for (String id : Scala.each(executors.iterator())) ids.add(id);
    return ids;
  }

  /**
   * Those of these executors of a host on which Spark may start tasks, also according to its own tracker, to the ids of their
   * resource profiles.
   */
  Map<String, Integer> usable(List<String> executors, String host, HealthTracker own, Map<String, Integer> profiles) {
    Map<String, Integer> usable = new HashMap<>();
    for (String id : executors) {
      if (isActive(id) && !ownExcludes(own, host, id)) usable.put(id, profiles.get(id));
    }
    return usable;
  }

  static boolean ownExcludes(HealthTracker own, String host, String executor) {
    return own != null && (own.isNodeExcluded(host) || own.isExecutorExcluded(executor));
  }

  /** Whether an executor of this host runs tasks. */
  boolean isBusy(String host) {
    return executors(host).stream().anyMatch(scheduler::isExecutorBusy);
  }

  /** The hosts that this tracker excludes for the application. */
  static List<Observation> exclusions(HealthTracker tracker) {
    List<Observation> found = new ArrayList<>();
    long now = System.currentTimeMillis();
    for (scala.Tuple2<String, Object> entry : Scala.each(tracker.nodeIdToExcludedExpiryTime().iterator()))
      if ((Long) entry._2() > now) found.add(new Observation(Observation.APPLICATION, entry._1(), "", -1));
    return found;
  }

  /** The hosts on which tasks of barrier stages run. */
  Set<String> barrierHosts() {
    Set<String> hosts = new HashSet<>();
    if (!hasBarrierStage()) return hosts;
    for (RunningTask task : tasks()) {
      if (task.isBarrier()) hosts.add(task.host);
    }
    return hosts;
  }

  private boolean hasBarrierStage() {
    return stages().stream().anyMatch(TaskSetManager::isBarrier);
  }

  /**
   * The number of slots that the largest waiting barrier stage needs, 0 if none waits: Spark starts all tasks of such a stage
   * at once, or none, and waits without end while there are fewer slots on open hosts. A running one has its slots.
   */
  int barrierSlotsNeeded() {
    int needed = 0;
    for (TaskSetManager stage : queue())
      if (stage.isBarrier() && !stage.isZombie() && stage.runningTasks() == 0) needed = Math.max(needed, stage.numTasks());
    return needed;
  }

  /** Whether a continuous query runs: Spark does not restart its tasks. */
  boolean hasContinuousQuery() {
    return stages().stream().map(stage -> stage.taskSet().properties()).anyMatch(it -> it != null && "true".equals(it.getProperty(CONTINUOUS)));
  }

  /** Those with waiting or running tasks. Spark's queue lacks those whose tasks have all been started. */
  private Set<TaskSetManager> stages() {
    Set<TaskSetManager> stages = new HashSet<>(scheduler.taskIdToTaskSetManager().values());
    for (TaskSetManager stage : queue()) stages.add(stage);
    return stages;
  }

  /** The stages that may have tasks to start. */
  Iterable<TaskSetManager> queue() {
    return Scala.each(scheduler.rootPool().getSortedTaskSetQueue().iterator());
  }

  /** All known executors with the number of their running tasks, and with the nodes that {@code directory} knows. */
  List<Executor> executors(HostDirectory directory) {
    Map<String, Integer> running = new HashMap<>();
    for (scala.Tuple2<Object, String> task : Scala.each(scheduler.taskIdToExecutorId().iterator())) running.merge(task._2(), 1, Integer::sum);
    List<Executor> executors = new ArrayList<>();
    for (scala.Tuple2<String, String> entry : Scala.each(scheduler.executorIdToHost().iterator())) {
      String node = directory.executorNode(entry._1(), entry._2());
      executors.add(new Executor(entry._1(), entry._2(), node == null ? entry._2() : node, running.getOrDefault(entry._1(), 0)));
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
    for (TaskSetManager stage : stages()) {
      for (TaskInfo task : Scala.each(stage.taskInfos().valuesIterator())) {
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

  List<RunningTask> tasks() {
    List<RunningTask> tasks = new ArrayList<>();
    for (scala.Tuple2<Object, String> entry : Scala.each(scheduler.taskIdToExecutorId().iterator())) {
      String host = Scala.orNull(scheduler.executorIdToHost().get(entry._2()));
      TaskSetManager stage = scheduler.taskIdToTaskSetManager().get(entry._1());
      if (host != null && stage != null) tasks.add(new RunningTask((Long) entry._1(), entry._2(), host, stage));
    }
    return tasks;
  }

  /** Whether Spark would abort a stage because one of its tasks is excluded from all hosts: its own check. */
  boolean hasUnschedulableTask() {
    for (TaskSetManager stage : queue()) {
      TaskSetExcludelist failures = Scala.orNull(stage.taskSetExcludelistHelperOpt());
      if (failures == null || failures.execToFailures().isEmpty()) continue;
      if (stage.getCompletelyExcludedTaskIfAny(scheduler.hostToExecutors()).isDefined()) return true;
    }
    return false;
  }

  /** Executor to the number of tasks that it runs at a time. */
  Map<String, Integer> slots() throws Exception {
    BigDecimal cpus = new BigDecimal(scheduler.sc().conf().get("spark.task.cpus", "1"));
    Map<String, Integer> slots = integers("totalCores");
    slots.replaceAll((executor, cores) -> new BigDecimal(cores).divide(cpus, 0, RoundingMode.DOWN).intValue());
    return slots;
  }

  /** Executor to the id of its resource profile. */
  Map<String, Integer> resourceProfiles() throws Exception {
    return integers("resourceProfileId");
  }

  /** Executor to the value of this field of ExecutorData; nothing if the backend is not known. */
  private Map<String, Integer> integers(String field) throws Exception {
    Map<String, Integer> values = new HashMap<>();
    SchedulerBackend backend = scheduler.backend();
    Class<?> known = Class.forName(BACKEND, true, SparkContext.class.getClassLoader());
    if (!known.isInstance(backend)) return values;
    // The backend's lock is taken within the scheduler's, as in CoarseGrainedSchedulerBackend.withLock.
    synchronized (backend) {
      scala.collection.mutable.HashMap<?, ?> executors = (scala.collection.mutable.HashMap<?, ?>) known.getMethod(EXECUTORS).invoke(backend);
      for (scala.Tuple2<?, ?> executor : Scala.each(executors.iterator()))
        values.put((String) executor._1(), (Integer) Scala.call(executor._2(), field));
    }
    return values;
  }
}
