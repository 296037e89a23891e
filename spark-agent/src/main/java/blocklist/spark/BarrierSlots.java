package blocklist.spark;

import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.apache.spark.scheduler.TaskSetManager;

/**
 * The slots that barrier stages wait for: Spark starts all tasks of such a stage at once, or none, and waits without end
 * while there are fewer slots on open hosts.
 *
 * <p>THREADING: the caller holds the monitor of the scheduler.
 */
final class BarrierSlots {
  private final TaskSchedulerImpl scheduler;

  BarrierSlots(TaskSchedulerImpl scheduler) {
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
}
