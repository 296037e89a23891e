package blocklist.spark;

import org.apache.spark.scheduler.TaskInfo;
import org.apache.spark.scheduler.TaskSetManager;

/** A running task and where it runs. */
final class RunningTask {
  final Long id;
  final String executor;
  final String host;
  private final TaskSetManager stage;

  RunningTask(Long id, String executor, String host, TaskSetManager stage) {
    this.id = id;
    this.executor = executor;
    this.host = host;
    this.stage = stage;
  }

  /** Its stage and its number there: the same for each of its attempts. */
  String key() {
    TaskInfo info = info();
    return stage() + "." + (info == null ? -1 : info.index());
  }

  boolean isBarrier() {
    return stage.isBarrier();
  }

  int stage() {
    return stage.taskSet().stageId();
  }

  int stageAttempt() {
    return stage.taskSet().stageAttemptId();
  }

  int partition() {
    TaskInfo info = info();
    return info == null ? -1 : info.partitionId();
  }

  int attempt() {
    TaskInfo info = info();
    return info == null ? -1 : info.attemptNumber();
  }

  /** Unix milliseconds by this machine's clock. */
  long launchedAt() {
    TaskInfo info = info();
    return info == null ? 0 : info.launchTime();
  }

  /** Null if its stage has not noted it yet. */
  private TaskInfo info() {
    return Scala.orNull(stage.taskInfos().get(id));
  }
}
