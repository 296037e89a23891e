package blocklist.spark;

import java.lang.reflect.Field;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskResultLost$;
import org.apache.spark.scheduler.OutputCommitCoordinator;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Which tasks Spark has permitted to commit their output. Such a task must not be killed: its output may be half in place,
 * and Spark 3.5.0 and 3.5.1 fail the whole job. A task that is to be killed is denied the permission before, because it may
 * ask for it while the kill is on its way.
 *
 * <p>Spark asks its coordinator for each task that writes files, and for most other sinks. It has no method for this
 * question, so its fields are read. THREADING: the monitor of the coordinator, taken within the scheduler's.
 */
final class OutputCommits {
  private static final Logger LOG = LoggerFactory.getLogger("blocklist");
  private final OutputCommitCoordinator coordinator;
  private boolean readable = true;

  OutputCommits(SparkContext sc) {
    coordinator = sc.env().outputCommitCoordinator();
  }

  boolean isPermitted(RunningTask task) {
    try {
      synchronized (coordinator) {
        return readable && isCommitter(task);
      }
    } catch (Exception e) {
      onError(e);
      return false;
    }
  }

  /** Deny the permission for good. False if the task has it already. */
  boolean deny(RunningTask task) {
    try {
      synchronized (coordinator) {
        if (!readable) return true;
        if (isCommitter(task)) return false;
        // Any failure denies it: this one is never counted, as the scheduler does not see it.
        coordinator.taskCompleted(task.stage(), task.stageAttempt(), task.partition(), task.attempt(), TaskResultLost$.MODULE$);
        return true;
      }
    } catch (Exception e) {
      onError(e);
      return true;
    }
  }

  private boolean isCommitter(RunningTask task) throws Exception {
    Field stages = OutputCommitCoordinator.class.getDeclaredField("stageStates");
    stages.setAccessible(true);
    @SuppressWarnings("unchecked")
    scala.collection.mutable.HashMap<Object, Object> states = (scala.collection.mutable.HashMap<Object, Object>) stages.get(coordinator);
    Object state = Scala.orNull(states.get(task.stage()));
    if (state == null) return false;
    Object[] committers = (Object[]) Scala.call(state, "authorizedCommitters");
    int partition = task.partition();
    Object committer = partition >= 0 && partition < committers.length ? committers[partition] : null;
    if (committer == null) return false;
    boolean sameStage = Integer.valueOf(task.stageAttempt()).equals(Scala.call(committer, "stageAttempt"));
    return sameStage && Integer.valueOf(task.attempt()).equals(Scala.call(committer, "taskAttempt"));
  }

  private void onError(Exception e) {
    if (readable) LOG.warn("Tasks that commit their output cannot be told from others: an evacuation kills them, too.", e);
    readable = false;
  }
}
