package blocklist.spark;

import java.math.BigDecimal;
import java.math.RoundingMode;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.SchedulerBackend;

/**
 * What Spark's backend knows about the executors; nothing if the backend is not known.
 *
 * <p>THREADING: the caller holds the monitor of the scheduler.
 */
final class BackendExecutors {
  private static final String BACKEND = "org.apache.spark.scheduler.cluster.CoarseGrainedSchedulerBackend";
  private static final String EXECUTORS = BACKEND.replace('.', '$') + "$$executorDataMap";

  private final SparkContext sc;

  BackendExecutors(SparkContext sc) {
    this.sc = sc;
  }

  /** Executor to the number of tasks that it runs at a time. */
  Map<String, Integer> slots() throws Exception {
    BigDecimal cpus = new BigDecimal(sc.conf().get("spark.task.cpus", "1"));
    Map<String, Integer> slots = integers("totalCores");
    slots.replaceAll((executor, cores) -> new BigDecimal(cores).divide(cpus, 0, RoundingMode.DOWN).intValue());
    return slots;
  }

  /** Executor to the id of its resource profile. */
  Map<String, Integer> resourceProfiles() throws Exception {
    return integers("resourceProfileId");
  }

  /** Executor to the value of this field of ExecutorData. */
  private Map<String, Integer> integers(String field) throws Exception {
    Map<String, Integer> values = new HashMap<>();
    SchedulerBackend backend = sc.schedulerBackend();
    Class<?> known = Class.forName(BACKEND, true, SparkContext.class.getClassLoader());
    if (!known.isInstance(backend)) return values;
    // The backend's lock is taken within the scheduler's, as in CoarseGrainedSchedulerBackend.withLock.
    synchronized (backend) {
      scala.collection.mutable.HashMap<?, ?> executors = (scala.collection.mutable.HashMap<?, ?>) known.getMethod(EXECUTORS).invoke(backend);
      for (scala.Tuple2<?, ?> executor : Scala.each(executors.iterator()))
        values.put((String) executor._1(), (Integer) Scala.call(executor._2(), field));
    }
    return values;
  }
}
