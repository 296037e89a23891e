package blocklist.spark;

import blocklist.spark.EvidenceCollector.Observation;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.Success$;
import org.apache.spark.scheduler.SparkListenerNodeExcludedForStage;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskStart;
import org.apache.spark.scheduler.TaskInfo;

/**
 * Collects from Spark's events the exclusions for stages, and the tasks whose speculative copies ended first.
 *
 * <p>Memory grows with the running stages, and with the running tasks if speculation is on; at most MAX_PENDING
 * observations wait for {@code drain}.
 */
final class SparkObserver extends GuardedListener {
  private static final int MAX_PENDING = 10000;

  private final boolean speculation;
  /** Stage to its Observations, which last as long as the stage. */
  private final Map<String, Set<Observation>> excluded = new HashMap<>();
  /** Stage to a map from the number of a task to its host. */
  private final Map<String, Map<Integer, String>> running = new HashMap<>();
  private final Set<Observation> pending = new LinkedHashSet<>();

  SparkObserver(boolean speculation) {
    super("This application reports no slow or excluded hosts any more, until its next start.");
    this.speculation = speculation;
  }

  public void onNodeExcludedForStage(SparkListenerNodeExcludedForStage event) {
    guarded(() -> excludedForStage(event));
  }

  public void onTaskStart(SparkListenerTaskStart event) {
    if (speculation) guarded(() -> started(event));
  }

  public void onTaskEnd(SparkListenerTaskEnd event) {
    if (speculation) guarded(() -> taskEnded(event));
  }

  public void onStageCompleted(SparkListenerStageCompleted event) {
    guarded(() -> completed(event));
  }

  private void excludedForStage(SparkListenerNodeExcludedForStage event) {
    String stage = event.stageId() + "." + event.stageAttemptId();
    Observation observation = new Observation(Observation.STAGE, event.hostId(), stage, -1);
    excluded.computeIfAbsent(stage, each -> new HashSet<>()).add(observation);
    record(observation);
  }

  private void started(SparkListenerTaskStart event) {
    TaskInfo task = event.taskInfo();
    if (task == null) return;
    String stage = event.stageId() + "." + event.stageAttemptId();
    if (!task.speculative()) running.computeIfAbsent(stage, each -> new HashMap<>()).put(task.index(), task.host());
  }

  private void taskEnded(SparkListenerTaskEnd event) {
    TaskInfo task = event.taskInfo();
    if (task == null) return;
    String stage = event.stageId() + "." + event.stageAttemptId();
    Map<Integer, String> tasks = running.get(stage);
    if (tasks == null) return;
    if (task.speculative()) {
      // A task with much data takes as long on any host: its copy does not end first.
      String host = tasks.get(task.index());
      if (host != null && event.reason() == Success$.MODULE$) record(new Observation(Observation.SLOW, host, stage, task.index()));
      return;
    }
    tasks.remove(task.index());
    if (tasks.isEmpty()) running.remove(stage);
  }

  private void completed(SparkListenerStageCompleted event) {
    String stage = event.stageInfo().stageId() + "." + event.stageInfo().attemptNumber();
    excluded.remove(stage);
    running.remove(stage);
  }

  /** The exclusions for stages that still run, and what has been observed since the last call. */
  synchronized List<Observation> drain() {
    for (Set<Observation> stage : excluded.values()) stage.forEach(this::record);
    List<Observation> drained = new ArrayList<>(pending);
    pending.clear();
    return drained;
  }

  void record(Observation observation) {
    if (pending.size() < MAX_PENDING) pending.add(observation);
  }
}
