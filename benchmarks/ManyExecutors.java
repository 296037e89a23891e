import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.HealthTracker;
import org.apache.spark.scheduler.TaskSchedulerImpl;

/*
 * A driver whose scheduler knows so many executors, each on a host of its own: host-0, host-1, … They run nothing. The
 * argument is their number; the settings are system properties. For each line of its input it prints a number:
 * `heap` (megabytes after a collection of garbage), `closed` (hosts that get no task), `round` (microseconds that the
 * scheduler's tracker adds to a round of offers to all executors, which is less than a job's round in all).
 */
public final class ManyExecutors {
  private static TaskSchedulerImpl scheduler;
  private static int count;

  public static void main(String[] arguments) throws Exception {
    count = Integer.parseInt(arguments[0]);
    SparkContext sc = new SparkContext(new SparkConf());
    scheduler = (TaskSchedulerImpl) sc.taskScheduler();
    add();
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
    for (String line = commands.readLine(); line != null; line = commands.readLine())
      System.out.println("heap".equals(line) ? heap() : "closed".equals(line) ? closed() : round());
    sc.stop();
  }

  @SuppressWarnings("unchecked")
  private static void add() throws Exception {
    Field running = TaskSchedulerImpl.class.getDeclaredField("executorIdToRunningTaskIds");
    running.setAccessible(true);
    synchronized (scheduler) {
      scala.collection.mutable.HashMap<String, Object> tasks = (scala.collection.mutable.HashMap<String, Object>) running.get(scheduler);
      for (int i = 0; i < count; i++) {
        scala.collection.mutable.HashSet<String> executors = new scala.collection.mutable.HashSet<>();
        executors.add(String.valueOf(i));
        tasks.put(String.valueOf(i), new scala.collection.mutable.HashSet<Object>());
        scheduler.executorIdToHost().put(String.valueOf(i), "host-" + i);
        scheduler.hostToExecutors().put("host-" + i, executors);
      }
    }
  }

  private static long heap() {
    for (int i = 0; i < 2; i++) System.gc();
    return (Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory()) / 1000000;
  }

  private static int closed() {
    synchronized (scheduler) {
      HealthTracker tracker = tracker();
      int closed = 0;
      for (int i = 0; i < count; i++) if (tracker != null && tracker.isNodeExcluded("host-" + i)) closed++;
      return closed;
    }
  }

  /* As in TaskSchedulerImpl.resourceOffers. */
  private static long round() {
    long least = Long.MAX_VALUE;
    for (int i = 0; i < 20; i++) {
      long began = System.nanoTime();
      synchronized (scheduler) {
        HealthTracker tracker = tracker();
        if (tracker == null) return 0;
        tracker.applyExcludeOnFailureTimeout();
        for (int j = 0; j < count; j++) if (!tracker.isNodeExcluded("host-" + j)) tracker.isExecutorExcluded(String.valueOf(j));
      }
      least = Math.min(least, System.nanoTime() - began);
    }
    return least / 1000;
  }

  private static HealthTracker tracker() {
    return scheduler.healthTrackerOpt().isDefined() ? scheduler.healthTrackerOpt().get() : null;
  }
}
