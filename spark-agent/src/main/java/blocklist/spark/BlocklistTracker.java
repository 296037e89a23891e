package blocklist.spark;

import org.apache.spark.ExecutorAllocationClient;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.ExcludedExecutor;
import org.apache.spark.scheduler.ExecutorFailuresInTaskSet;
import org.apache.spark.scheduler.HealthTracker;
import org.apache.spark.util.SystemClock;

/**
 * The HealthTracker that Spark's scheduler asks: it adds the blocked hosts and executors to the exclusions of Spark's
 * own tracker, which is never changed.
 *
 * <p>Spark calls applyExcludeOnFailureTimeout at the start of each round of resource offers, before it checks
 * exclusions and before it may abort a job that has no host. That call decides anew, so no round finds all hosts
 * blocked.
 *
 * <p>LINKING: one jar serves Scala 2.12 and 2.13. Of Scala's collections, these classes call only mutable.HashMap,
 * mutable.HashSet, ArrayBuffer and Iterator, whose methods are the same in both.
 *
 * <p>THREADING: as in each HealthTracker, the monitor of the TaskSchedulerImpl guards all state, and Spark holds it when
 * it calls. Only excludedNodeList is called without it.
 */
public final class BlocklistTracker extends HealthTracker {
  private final SchedulerControl control;
  private final HealthTracker own;

  /** {@code own} is Spark's own tracker; null if the application has none. */
  BlocklistTracker(SparkContext sc, HealthTracker own, SchedulerControl control) {
    super(sc.listenerBus(), new SparkConf(false), allocationClient(sc), new SystemClock());
    this.own = own;
    this.control = control;
  }

  private static scala.Option<ExecutorAllocationClient> allocationClient(SparkContext sc) {
    Object backend = sc.schedulerBackend();
    return scala.Option.apply(backend instanceof ExecutorAllocationClient ? (ExecutorAllocationClient) backend : null);
  }

  HealthTracker own() {
    return own;
  }

  /** The agent, for a second jar in the same driver, which finds this tracker in the scheduler. */
  public Object agent() {
    return control.agent();
  }

  public void applyExcludeOnFailureTimeout() {
    if (own != null) own.applyExcludeOnFailureTimeout();
    control.beforeOffers();
  }

  public boolean isNodeExcluded(String host) {
    return control.excludes(host) || (own != null && own.isNodeExcluded(host));
  }

  public boolean isExecutorExcluded(String executor) {
    return control.excludesExecutor(executor) || (own != null && own.isExecutorExcluded(executor));
  }

  public void handleRemovedExecutor(String executor) {
    control.executorRemoved(executor);
    if (own != null) own.handleRemovedExecutor(executor);
  }

  /** Spark calls it to get another executor in its place. Not if a host is about to open: its shuffle files would be lost. */
  public void killExcludedIdleExecutor(String executor) {
    if (own != null && !control.willOpen()) own.killExcludedIdleExecutor(executor);
  }

  public void updateExcludedForFetchFailure(String host, String executor) {
    if (own != null) own.updateExcludedForFetchFailure(host, executor);
  }

  public void updateExcludedForSuccessfulTaskSet(int stage, int attempt, scala.collection.mutable.HashMap<String, ExecutorFailuresInTaskSet> failures) {
    if (own != null) own.updateExcludedForSuccessfulTaskSet(stage, attempt, failures);
  }

  public scala.collection.mutable.HashMap<String, Object> nodeIdToExcludedExpiryTime() {
    return own == null ? super.nodeIdToExcludedExpiryTime() : own.nodeIdToExcludedExpiryTime();
  }

  public scala.collection.mutable.HashMap<String, ExcludedExecutor> executorIdToExcludedStatus() {
    return own == null ? super.executorIdToExcludedStatus() : own.executorIdToExcludedStatus();
  }

  /**
   * Without the blocked hosts. Spark rejects an executor that registers on a host in this list: a standalone Master
   * restarts it there for ever, and YARN counts it as a failure, which ends the application.
   */
  public scala.collection.immutable.Set<String> excludedNodeList() {
    return own == null ? super.excludedNodeList() : own.excludedNodeList();
  }
}
