package blocklist.spark;

import java.math.BigDecimal;
import java.math.RoundingMode;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.SchedulerBackend;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.apache.spark.scheduler.TaskSetManager;

/**
 * The slots that barrier stages wait for: Spark starts all tasks of such a stage at once, or none, and waits without end
 * while there are fewer slots on open hosts.
 *
 * <p>THREADING: the caller holds the monitor of the scheduler.
 */
final class BarrierSlots {
  private static final String BACKEND = "org.apache.spark.scheduler.cluster.CoarseGrainedSchedulerBackend";
  private static final String EXECUTORS = BACKEND.replace('.', '$') + "$$executorDataMap";

  private final SparkContext sc;
  private final TaskSchedulerImpl scheduler;

  BarrierSlots(SparkContext sc, TaskSchedulerImpl scheduler) {
    this.sc = sc;
    this.scheduler = scheduler;
  }

  /** The number of slots that the largest waiting barrier stage needs; 0 if none waits. A running one has its slots. */
  int needed() {
    int needed = 0;
    scala.collection.Iterator it = scheduler.rootPool().getSortedTaskSetQueue().iterator();
    while (it.hasNext()) {
      TaskSetManager stage = (TaskSetManager) it.next();
      if (stage.isBarrier() && !stage.isZombie() && stage.runningTasks() == 0) needed = Math.max(needed, stage.numTasks());
    }
    return needed;
  }

  /** Executor to the number of tasks that it runs at a time; empty for an unknown backend. */
  Map byExecutor() throws Exception {
    Map slots = new HashMap();
    SchedulerBackend backend = sc.schedulerBackend();
    Class known = Class.forName(BACKEND, true, SparkContext.class.getClassLoader());
    if (!known.isInstance(backend)) return slots;
    BigDecimal cpus = new BigDecimal(sc.conf().get("spark.task.cpus", "1"));
    synchronized (backend) {
      scala.collection.Iterator it = ((scala.collection.mutable.HashMap) known.getMethod(EXECUTORS, new Class[0]).invoke(backend, new Object[0])).iterator();
      while (it.hasNext()) {
        scala.Tuple2 executor = (scala.Tuple2) it.next();
        int cores = ((Integer) Reflection.call(executor._2(), "totalCores")).intValue();
        slots.put(executor._1(), Integer.valueOf(new BigDecimal(cores).divide(cpus, 0, RoundingMode.DOWN).intValue()));
      }
    }
    return slots;
  }
}
