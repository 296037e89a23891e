package blocklist.spark;

import java.lang.reflect.Field;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.HealthTracker;
import org.apache.spark.scheduler.TaskSchedulerImpl;

/**
 * The field of the scheduler that holds its HealthTracker: installs the agent's one, and restores Spark's.
 *
 * <p>THREADING: the caller holds the monitor of the scheduler, except for {@code isInstalled}.
 */
final class TrackerSlot {
  /** Raised while an application without excludeOnFailure has the agent's tracker, because Spark 3.5 enables
      all failure handling as soon as there is a tracker. */
  private static final String[] LIMITS = {
    "spark.excludeOnFailure.task.maxTaskAttemptsPerExecutor", "spark.excludeOnFailure.task.maxTaskAttemptsPerNode",
    "spark.excludeOnFailure.stage.maxFailedTasksPerExecutor", "spark.excludeOnFailure.stage.maxFailedExecutorsPerNode"
  };

  /** As good as no limit, and what nobody sets: by this value `forgetLimits` knows the agent's limits. */
  private static final String RAISED = String.valueOf(Integer.MAX_VALUE - 1);

  private final SparkContext sc;
  private final TaskSchedulerImpl scheduler;
  private final Map<String, scala.Option<String>> limits = new HashMap<>();
  private HealthTracker own = null;
  private boolean taken = false;

  TrackerSlot(SparkContext sc, TaskSchedulerImpl scheduler) {
    this.sc = sc;
    this.scheduler = scheduler;
  }

  /** Spark's own tracker; null if the application has none. Throws IllegalStateException if another agent is there. */
  HealthTracker own() {
    HealthTracker present = present();
    if (present instanceof BlocklistTracker) return ((BlocklistTracker) present).own();
    if (present != null && present.getClass().getName().indexOf("Blocklist") >= 0)
      throw new IllegalStateException("another agent is in this driver: " + present.getClass().getName() + ". Use only one jar, or only one start.");
    if (taken && present != null && present != own)
      throw new IllegalStateException("another tracker is in this driver: " + present.getClass().getName() + ".");
    return present;
  }

  /** Whether Spark's own failure handling is off. */
  boolean isWithoutFailureHandling() {
    return own == null && !"true".equals(sc.conf().get("spark.excludeOnFailure.taskAndStage.enabled", "false"));
  }

  boolean isInstalled(HealthTracker tracker) {
    return present() == tracker;
  }

  void install(BlocklistTracker tracker) throws Exception {
    own = tracker.own();
    taken = true;
    if (isWithoutFailureHandling()) raiseLimits();
    set(tracker);
  }

  /** Put Spark's own tracker back, whatever is there. */
  void restore() throws Exception {
    if (!taken) return;
    set(own);
    lowerLimits();
  }

  private HealthTracker present() {
    return Scala.orNull(scheduler.healthTrackerOpt());
  }

  private void set(HealthTracker tracker) throws Exception {
    Field field = TaskSchedulerImpl.class.getDeclaredField("healthTrackerOpt");
    field.setAccessible(true);
    field.set(scheduler, scala.Option.apply(tracker));
  }

  private void raiseLimits() {
    for (String limit : LIMITS) {
      if (!limits.containsKey(limit)) limits.put(limit, sc.conf().getOption(limit));
      sc.conf().set(limit, RAISED);
    }
  }

  /**
   * Remove the raised limits from the configuration of a new application, which has them if it is a copy of the one of an
   * application that ran: Spark would not start it with excludeOnFailure.
   */
  static void forgetLimits(SparkConf conf) {
    for (String limit : LIMITS) if (conf.get(limit, "").equals(RAISED)) conf.remove(limit);
  }

  private void lowerLimits() {
    limits.forEach((limit, before) -> {
      if (before.isDefined()) sc.conf().set(limit, before.get());
      else sc.conf().remove(limit);
    });
    limits.clear();
  }
}
