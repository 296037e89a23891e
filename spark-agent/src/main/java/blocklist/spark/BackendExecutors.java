package blocklist.spark;

import java.math.BigDecimal;
import java.math.RoundingMode;
import java.util.HashMap;
import java.util.Iterator;
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
  Map slots() throws Exception {
    BigDecimal cpus = new BigDecimal(sc.conf().get("spark.task.cpus", "1"));
    Map slots = integers("totalCores");
    for (Iterator it = slots.entrySet().iterator(); it.hasNext();) {
      Map.Entry entry = (Map.Entry) it.next();
      BigDecimal cores = new BigDecimal(((Integer) entry.getValue()).intValue());
      entry.setValue(Integer.valueOf(cores.divide(cpus, 0, RoundingMode.DOWN).intValue()));
    }
    return slots;
  }

  /** Executor to the id of its resource profile. */
  Map resourceProfiles() throws Exception {
    return integers("resourceProfileId");
  }

  /** Executor to the value of this field of ExecutorData. */
  private Map integers(String field) throws Exception {
    Map values = new HashMap();
    SchedulerBackend backend = sc.schedulerBackend();
    Class known = Class.forName(BACKEND, true, SparkContext.class.getClassLoader());
    if (!known.isInstance(backend)) return values;
    // The backend's lock is taken within the scheduler's, as in CoarseGrainedSchedulerBackend.withLock.
    synchronized (backend) {
      scala.collection.Iterator it = ((scala.collection.mutable.HashMap) known.getMethod(EXECUTORS, new Class[0]).invoke(backend, new Object[0])).iterator();
      while (it.hasNext()) {
        scala.Tuple2 executor = (scala.Tuple2) it.next();
        values.put(executor._1(), Reflection.call(executor._2(), field));
      }
    }
    return values;
  }
}
