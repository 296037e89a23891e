package blocklist.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerNodeExcludedForStage;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskStart;
import org.apache.spark.scheduler.TaskInfo;

/**
 * Collects from Spark's events the exclusions for stages and the speculated tasks.
 *
 * <p>Memory grows with the running stages, and with the running tasks if speculation is on; at most MAX_PENDING
 * observations wait for {@code drain}. THREADING: it has its own monitor.
 */
final class SparkObserver extends SparkListener {
  private static final int MAX_PENDING = 10000;

  private final boolean speculation;
  /** Stage to its Observations, which last as long as the stage. */
  private final Map excluded = new HashMap();
  /** Stage to a map from the number of a task to its host. */
  private final Map running = new HashMap();
  private final Set pending = new LinkedHashSet();

  SparkObserver(boolean speculation) {
    this.speculation = speculation;
  }

  public synchronized void onNodeExcludedForStage(SparkListenerNodeExcludedForStage event) {
    String stage = event.stageId() + "." + event.stageAttemptId();
    if (!excluded.containsKey(stage)) excluded.put(stage, new HashSet());
    Observation observation = new Observation(Observation.STAGE, event.hostId(), stage, -1);
    ((Set) excluded.get(stage)).add(observation);
    record(observation);
  }

  public synchronized void onTaskStart(SparkListenerTaskStart event) {
    TaskInfo task = event.taskInfo();
    if (!speculation || task == null) return;
    String stage = event.stageId() + "." + event.stageAttemptId();
    Integer index = Integer.valueOf(task.index());
    Map tasks = (Map) running.get(stage);
    if (!task.speculative()) {
      if (tasks == null) running.put(stage, tasks = new HashMap());
      tasks.put(index, task.host());
    } else if (tasks != null && tasks.containsKey(index)) {
      record(new Observation(Observation.SLOW, (String) tasks.get(index), stage, task.index()));
    }
  }

  public synchronized void onTaskEnd(SparkListenerTaskEnd event) {
    TaskInfo task = event.taskInfo();
    if (task == null || task.speculative()) return;
    String stage = event.stageId() + "." + event.stageAttemptId();
    Map tasks = (Map) running.get(stage);
    if (tasks == null) return;
    tasks.remove(Integer.valueOf(task.index()));
    if (tasks.isEmpty()) running.remove(stage);
  }

  public synchronized void onStageCompleted(SparkListenerStageCompleted event) {
    String stage = event.stageInfo().stageId() + "." + event.stageInfo().attemptNumber();
    excluded.remove(stage);
    running.remove(stage);
  }

  /** The exclusions for stages that still run, and what has been observed since the last call. */
  synchronized List drain() {
    for (Iterator it = excluded.values().iterator(); it.hasNext();)
      for (Iterator stage = ((Set) it.next()).iterator(); stage.hasNext();) record((Observation) stage.next());
    List drained = new ArrayList(pending);
    pending.clear();
    return drained;
  }

  void record(Observation observation) {
    if (pending.size() < MAX_PENDING) pending.add(observation);
  }
}
