package blocklist.spark;

import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.HealthTracker;
import org.apache.spark.scheduler.SparkListenerNodeExcluded;
import org.apache.spark.scheduler.SparkListenerNodeUnexcluded;

/** Shows blocks in Spark's UI and event log. Hosts that Spark's own tracker excludes are shown by that tracker. */
final class ExclusionEvents {
  private final SparkContext sc;

  ExclusionEvents(SparkContext sc) {
    this.sc = sc;
  }

  void excluded(String host, HealthTracker own) {
    if (own == null || !own.isNodeExcluded(host)) sc.listenerBus().post(new SparkListenerNodeExcluded(System.currentTimeMillis(), host, 0));
  }

  void freed(String host, HealthTracker own) {
    if (own == null || !own.isNodeExcluded(host)) sc.listenerBus().post(new SparkListenerNodeUnexcluded(System.currentTimeMillis(), host));
  }
}
