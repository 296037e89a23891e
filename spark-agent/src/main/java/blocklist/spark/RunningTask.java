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
    scala.Option info = stage.taskInfos().get(id);
    return stage.taskSet().stageId() + "." + (info.isDefined() ? ((TaskInfo) info.get()).index() : -1);
  }

  boolean isBarrier() {
    return stage.isBarrier();
  }
}
