package blocklist.spark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.HealthTracker;
import org.apache.spark.scheduler.SparkListenerExecutorExcluded;
import org.apache.spark.scheduler.SparkListenerExecutorUnexcluded;
import org.apache.spark.scheduler.SparkListenerNodeExcluded;
import org.apache.spark.scheduler.SparkListenerNodeUnexcluded;

/**
 * Shows blocks in Spark's UI and event log: closed hosts, and the closed executors of hosts with a canary block. What
 * Spark's own tracker excludes is shown by that tracker.
 */
final class ExclusionEvents {
  private final SparkContext sc;
  /** The executors that are shown as excluded, to their hosts. */
  private Map<String, String> shown = new HashMap<>();

  ExclusionEvents(SparkContext sc) {
    this.sc = sc;
  }

  void excluded(String host, HealthTracker own) {
    if (own == null || !own.isNodeExcluded(host)) sc.listenerBus().post(new SparkListenerNodeExcluded(System.currentTimeMillis(), host, 0));
  }

  void freed(String host, HealthTracker own) {
    if (own == null || !own.isNodeExcluded(host)) sc.listenerBus().post(new SparkListenerNodeUnexcluded(System.currentTimeMillis(), host));
  }

  /**
   * These executors, to their hosts, are excluded, and no others. Call it after hosts have been freed and before others are
   * excluded: an event of a host changes what is shown of all of its executors.
   */
  void excludedExecutors(Map<String, String> executors, HealthTracker own) {
    long now = System.currentTimeMillis();
    shown.forEach((id, host) -> {
      if (executors.containsKey(id) || SchedulerState.ownExcludes(own, host, id)) return;
      sc.listenerBus().post(new SparkListenerExecutorUnexcluded(now, id));
    });
    Map<String, String> before = shown;
    shown = new HashMap<>();
    executors.forEach((id, host) -> {
      if (SchedulerState.ownExcludes(own, host, id)) return;
      shown.put(id, host);
      if (!before.containsKey(id)) sc.listenerBus().post(new SparkListenerExecutorExcluded(now, id, 0));
    });
  }
}
