package blocklist.spark;

import java.util.Map;
import java.util.TreeMap;
import java.util.function.UnaryOperator;
import java.util.regex.Pattern;
import org.apache.spark.ExceptionFailure;
import org.apache.spark.ExecutorLostFailure;
import org.apache.spark.FetchFailed;
import org.apache.spark.SparkContext;
import org.apache.spark.Success$;
import org.apache.spark.TaskEndReason;
import org.apache.spark.scheduler.SparkListenerApplicationEnd;
import org.apache.spark.scheduler.SparkListenerExecutorAdded;
import org.apache.spark.scheduler.SparkListenerExecutorRemoved;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.TaskInfo;
import org.apache.spark.scheduler.TaskScheduler;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.apache.spark.storage.BlockManagerId;

/**
 * Tells a FailureJudge what Spark's events say. Only exceptions of tasks count as failures: killed tasks, denied commits and
 * lost results are nobody's fault, or not the task's; a lack of memory is the job's; and what fails on an executor that is
 * being decommissioned may fail because of that.
 */
final class FailureListener extends GuardedListener {
  /** The last line of a traceback of Python; the lines before, which are indented, may quote code with this word. */
  private static final Pattern PYTHON_MEMORY = Pattern.compile("(?m)^[\\w.]*MemoryError\\b");

  private static final Pattern OUT_OF_MEMORY = Pattern.compile("(?m)^(?:Caused by: )?[\\w.$]*OutOfMemoryError\\b");

  private final FailureJudge judge;
  private final TaskScheduler scheduler;

  FailureListener(boolean hostsServe, TaskScheduler scheduler) {
    super("This application reports no failing hosts any more, until its next start.");
    judge = new FailureJudge(hostsServe);
    this.scheduler = scheduler;
  }

  /** Starts to listen; the executors that are there already count as added now. */
  static FailureListener start(SparkContext sc) {
    boolean hostsServe = "true".equals(sc.conf().get("spark.shuffle.service.enabled", "false"));
    FailureListener listener = new FailureListener(hostsServe, sc.taskScheduler());
    sc.addSparkListener(listener);
    listener.addPresent();
    return listener;
  }

  private void addPresent() {
    if (!(scheduler instanceof TaskSchedulerImpl)) return;
    TaskSchedulerImpl its = (TaskSchedulerImpl) scheduler;
    Map<String, String> present = new TreeMap<>();
    try {
      // Not with this object's monitor.
      synchronized (its) {
        for (scala.Tuple2<String, String> executor : Scala.each(its.executorIdToHost().iterator())) present.put(executor._1(), executor._2());
      }
    } catch (Throwable t) {
      fail(t);
    }
    guarded(() -> present.forEach((id, host) -> judge.executorAdded(id, host, Times.monotonic())));
  }

  public void onTaskEnd(SparkListenerTaskEnd event) {
    boolean decommissioned;
    try {
      // Not with this object's monitor: it takes that of the scheduler.
      decommissioned = event.reason() instanceof ExceptionFailure && isDecommissioned(event.taskInfo());
    } catch (Throwable t) {
      fail(t);
      return;
    }
    if (!decommissioned) guarded(() -> taskEnded(event));
  }

  private boolean isDecommissioned(TaskInfo task) {
    return task != null && scheduler.getExecutorDecommissionState(task.executorId()).isDefined();
  }

  public void onExecutorAdded(SparkListenerExecutorAdded event) {
    guarded(() -> judge.executorAdded(event.executorId(), event.executorInfo().executorHost(), Times.monotonic()));
  }

  public void onExecutorRemoved(SparkListenerExecutorRemoved event) {
    guarded(() -> judge.executorRemoved(event.executorId(), String.valueOf(event.reason()), Times.monotonic()));
  }

  /** Its executors end now. */
  public void onApplicationEnd(SparkListenerApplicationEnd event) {
    end();
  }

  /** As {@code FailureJudge.findings}, now. */
  synchronized Map<String, String> findings(UnaryOperator<String> nodeOf) {
    Map<String, String> found = new TreeMap<>();
    guarded(() -> found.putAll(judge.findings(nodeOf, Times.monotonic())));
    return found;
  }

  private void taskEnded(SparkListenerTaskEnd event) {
    TaskInfo task = event.taskInfo();
    if (task == null) return;
    TaskEndReason reason = event.reason();
    long now = Times.monotonic();
    if (reason == Success$.MODULE$) {
      judge.taskSucceeded(event.stageId(), task.partitionId(), task.host(), task.launchTime(), task.finishTime(), now);
    } else if (reason instanceof ExceptionFailure) {
      ExceptionFailure failure = (ExceptionFailure) reason;
      if (isOutOfMemory(failure)) return;
      String error = simpleName(failure.className());
      judge.taskFailed(event.stageId(), task.partitionId(), task.executorId(), task.host(), error, task.launchTime(), task.finishTime(), now);
    } else if (reason instanceof FetchFailed) {
      FetchFailed failure = (FetchFailed) reason;
      // Null: where the data is was not known.
      if (failure.bmAddress() != null) fetchFailed(event.stageId(), failure.bmAddress(), task, now);
    } else if (reason instanceof ExecutorLostFailure) {
      judge.taskLost(event.stageId(), task.partitionId(), task.executorId(), now);
    }
  }

  private void fetchFailed(int stageId, BlockManagerId server, TaskInfo task, long now) {
    judge.fetchFailed(stageId, server.executorId(), server.host(), task.host(), task.launchTime(), task.finishTime(), now);
  }

  private static boolean isOutOfMemory(ExceptionFailure failure) {
    // Also as a cause: what writes rows or builds a broadcast wraps it.
    if (OUT_OF_MEMORY.matcher(String.valueOf(failure.fullStackTrace())).find()) return true;
    return failure.className().endsWith("OutOfMemoryError") || PYTHON_MEMORY.matcher(String.valueOf(failure.description())).find();
  }

  private static String simpleName(String className) {
    return className.substring(className.lastIndexOf('.') + 1);
  }
}
