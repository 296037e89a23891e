package blocklist.spark;

import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.TaskScheduler;
import org.apache.spark.scheduler.TaskSchedulerImpl;

/** Which schedulers the agent knows. */
final class SparkVersion {
  private static final String[] VERSIONS = {"3.5.", "4."};
  private static final String[] SCHEDULERS = {
    "org.apache.spark.scheduler.TaskSchedulerImpl", "org.apache.spark.scheduler.cluster.YarnScheduler",
    "org.apache.spark.scheduler.cluster.YarnClusterScheduler"
  };

  private SparkVersion() {}

  /** Why the agent cannot apply blocks in this application; null if it can. */
  static String unsupported(SparkContext sc) {
    TaskScheduler scheduler = sc.taskScheduler();
    if (!(scheduler instanceof TaskSchedulerImpl) || !isOneOf(scheduler.getClass().getName()))
      return "The agent does not know the task scheduler " + scheduler.getClass().getName() + ".";
    for (int i = 0; i < VERSIONS.length; i++) if (sc.version().startsWith(VERSIONS[i])) return null;
    return "The agent does not know Spark " + sc.version() + ".";
  }

  private static boolean isOneOf(String name) {
    for (int i = 0; i < SCHEDULERS.length; i++) if (SCHEDULERS[i].equals(name)) return true;
    return false;
  }
}
