package blocklist.spark;

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import org.apache.spark.api.java.JavaFutureAction;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.api.java.function.VoidFunction;
import org.apache.spark.rdd.RDD;
import org.apache.spark.scheduler.PendingTasksByLocality;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.apache.spark.scheduler.TaskSetManager;
import scala.collection.mutable.ArrayBuffer;

/* Facts of tasks that wait for a host: the stages are Spark's own, of which no task starts while both slots are taken. */
final class LocalityFacts {
  static final long WAIT_MILLIS = 2000;
  private static final int MANY = 100000;
  static volatile CountDownLatch taken = new CountDownLatch(0);
  static volatile CountDownLatch freed = new CountDownLatch(0);

  private final JavaSparkContext spark;
  private final TaskSchedulerImpl scheduler;
  private final String host;

  LocalityFacts(JavaSparkContext spark, String host) {
    this.spark = spark;
    this.host = host;
    scheduler = (TaskSchedulerImpl) spark.sc().taskScheduler();
  }

  public static final class Slot implements VoidFunction<Object> {
    private static final long serialVersionUID = 1;

    public void call(Object number) throws Exception {
      taken.countDown();
      freed.await();
    }
  }

  public static final class Nothing implements VoidFunction<Object> {
    private static final long serialVersionUID = 1;

    public void call(Object number) {}
  }

  /* A stage whose tasks prefer these places, in Spark's words: one list for each task. */
  private final class Stage implements AutoCloseable {
    final TaskSetManager tasks;
    private final JavaFutureAction<Void> slots;
    private final JavaFutureAction<Void> job;

    Stage(List<List<String>> places) throws Exception {
      taken = new CountDownLatch(2);
      freed = new CountDownLatch(1);
      slots = spark.parallelize(Arrays.<Object>asList(1, 2), 2).foreachAsync(new Slot());
      taken.await();
      job = rdd(places).foreachAsync(new Nothing());
      tasks = found(places.size());
    }

    /* As in a round of offers, after a while. */
    void offer() throws Exception {
      Thread.sleep(150);
      synchronized (scheduler) {
        ((BlocklistTracker) scheduler.healthTrackerOpt().get()).applyExcludeOnFailureTimeout();
      }
    }

    public String toString() {
      synchronized (scheduler) {
        PendingTasksByLocality pending = tasks.pendingTasks();
        TreeSet<String> lists = new TreeSet<>();
        for (scala.Tuple2<String, ArrayBuffer<Object>> each : Scala.each(pending.forHost().iterator())) lists.add(each._1() + numbers(each._2()));
        for (scala.Tuple2<String, ArrayBuffer<Object>> each : Scala.each(pending.forExecutor().iterator())) lists.add("@" + each._1() + numbers(each._2()));
        return lists + " anywhere" + numbers(pending.noPrefs()) + " of " + pending.all().size();
      }
    }

    public void close() throws Exception {
      job.cancel(true);
      freed.countDown();
      slots.get();
      while (running()) Thread.sleep(10);
    }
  }

  private boolean running() {
    synchronized (scheduler) {
      return scheduler.rootPool().getSortedTaskSetQueue().size() > 0;
    }
  }

  private TaskSetManager found(int size) throws Exception {
    while (true) {
      synchronized (scheduler) {
        for (TaskSetManager stage : new SchedulerState(scheduler).queue()) if (stage.numTasks() == size && stage.runningTasks() == 0) return stage;
      }
      Thread.sleep(10);
    }
  }

  private static Set<Integer> numbers(ArrayBuffer<Object> list) {
    TreeSet<Integer> numbers = new TreeSet<>();
    for (Object each : Scala.each(list.iterator())) numbers.add((Integer) each);
    return numbers;
  }

  private JavaRDD<Object> rdd(List<List<String>> places) throws Exception {
    scala.reflect.ClassTag<Object> any = scala.reflect.ClassTag$.MODULE$.apply(Object.class);
    List<Object> elements = new ArrayList<>();
    for (List<String> each : places) elements.add(new scala.Tuple2<Object, Object>(elements.size(), scalaList(each)));
    // The type of Seq is another one in Scala 2.12.
    for (Method method : spark.sc().getClass().getMethods()) {
      if (!method.getName().equals("makeRDD") || method.getParameterCount() != 2) continue;
      @SuppressWarnings("unchecked")
      RDD<Object> made = (RDD<Object>) method.invoke(spark.sc(), scalaList(elements), any);
      return new JavaRDD<>(made, any);
    }
    throw new IllegalStateException("makeRDD");
  }

  private static scala.collection.immutable.List<Object> scalaList(List<?> elements) {
    scala.collection.immutable.List<Object> list = scala.collection.immutable.List$.MODULE$.empty();
    for (int i = elements.size() - 1; i >= 0; i--) list = list.$colon$colon(elements.get(i));
    return list;
  }

  private static String cachedIn(String executor) {
    return "executor_other_" + executor;
  }

  private long millis(List<List<String>> places) throws Exception {
    JavaRDD<Object> rdd = rdd(places);
    long began = System.nanoTime();
    JavaFutureAction<Void> job = rdd.foreachAsync(new Nothing());
    // On a cluster Spark does so each second; in local mode only when a task ends.
    for (; !job.isDone(); Thread.sleep(50)) spark.sc().schedulerBackend().reviveOffers();
    job.get();
    return (System.nanoTime() - began) / 1000000;
  }

  /* Spark waits for the executor, then for the host. */
  Object doNotWait(SchedulerControl control) throws Exception {
    List<List<String>> places = Collections.nCopies(4, Collections.singletonList(cachedIn("on other")));
    control.apply(Table.EMPTY);
    long before = millis(places);
    control.apply(SchedulerProgram.tableOf("other", "mark"));
    long blocked = millis(places);
    control.apply(Table.EMPTY);
    long after = millis(places);
    boolean waits = before >= 2 * WAIT_MILLIS && after >= 2 * WAIT_MILLIS;
    return waits && blocked < WAIT_MILLIS ? "true" : before + " " + blocked + " " + after;
  }

  /* Of the six tasks, the last has never preferred a place. The host `gone` has no executor. */
  Object keepOpenPlaces(SchedulerControl control) throws Exception {
    control.apply(SchedulerProgram.tableOf("other", "mark"));
    List<List<String>> places = Arrays.asList(
      Arrays.asList("other"), Arrays.asList("other", host), Arrays.asList(host), Arrays.asList(cachedIn("on other")), Arrays.asList("gone", "other"),
      Collections.<String>emptyList());
    try (Stage stage = new Stage(places)) {
      stage.offer();
      String first = stage.toString();
      String expected = "[" + new TreeSet<>(Arrays.asList(host + "[1, 2]", "gone[4]")).toString().replaceAll("^.|.$", "") + "] anywhere[0, 3, 4, 5] of 6";
      // As after a failure, twice: a list may have a task more than once.
      for (int i = 0; i < 2; i++) {
        synchronized (scheduler) {
          stage.tasks.addPendingTask(0, true, false);
        }
        stage.offer();
      }
      String again = stage.toString();
      control.apply(Table.EMPTY);
      stage.offer();
      boolean same = again.equals(expected.replace("of 6", "of 8")) && stage.toString().equals(again);
      return first.equals(expected) && same ? "true" : first + ", then " + again + ", then " + stage;
    }
  }

  /* The canary is the executor 11. */
  Object keepCanary(SchedulerControl control) throws Exception {
    control.apply(SchedulerProgram.canaryOf("other"));
    List<List<String>> places = Arrays.asList(Arrays.asList(cachedIn("11")), Arrays.asList(cachedIn("on other")), Arrays.asList("other"));
    try (Stage stage = new Stage(places)) {
      stage.offer();
      String canary = stage.toString();
      control.apply(SchedulerProgram.tableOf("other", "mark"));
      stage.offer();
      boolean right = canary.equals("[@11[0]] anywhere[1, 2] of 3") && stage.toString().equals("[] anywhere[0, 1, 2] of 3");
      return right ? "true" : canary + ", then " + stage;
    }
  }

  /* CPU time of this thread, as others use the machine, too. Meanwhile the scheduler starts no task. */
  private long cpuMicros(PendingTasks pending, Plan plan, int rounds) {
    ThreadMXBean threads = ManagementFactory.getThreadMXBean();
    long before = threads.getCurrentThreadCpuTime();
    for (int i = 0; i < rounds; i++) {
      synchronized (scheduler) {
        pending.forgetClosed(plan);
      }
    }
    return (threads.getCurrentThreadCpuTime() - before) / 1000;
  }

  Object boundedCost(SchedulerControl control) throws Exception {
    control.apply(SchedulerProgram.tableOf("other", "mark"));
    Plan plan = control.snapshot().plan;
    control.apply(Table.EMPTY);
    try (Stage stage = new Stage(Collections.nCopies(MANY, Collections.singletonList(cachedIn("on other"))))) {
      PendingTasks pending = new PendingTasks(scheduler);
      long once = cpuMicros(pending, plan, 1);
      long each = cpuMicros(pending, plan, 1000) / 1000;
      System.err.println("COST of " + MANY + " pending tasks: " + once + " microseconds once, then " + each + " in each round");
      boolean all = stage.tasks.pendingTasks().noPrefs().size() == MANY && stage.tasks.pendingTasks().forHost().size() == 0;
      return all && once < 500000 && each < 100 ? "true" : once + " " + each + " " + stage.tasks.pendingTasks().noPrefs().size();
    }
  }

  /* Spark's lists have something else than expected: the host stays closed, and tasks wait as Spark does. */
  Object unknownSpark(SchedulerControl control) throws Exception {
    control.apply(Table.EMPTY);
    try (Stage stage = new Stage(Arrays.asList(Arrays.asList("other")))) {
      ArrayBuffer<Object> strange = new ArrayBuffer<>();
      ArrayBuffer.class.getMethod("$plus$eq", Object.class).invoke(strange, "one");
      synchronized (scheduler) {
        stage.tasks.pendingTasks().forHost().put("other", strange);
      }
      boolean unknown = !control.waitsForClosedHosts();
      control.apply(SchedulerProgram.tableOf("other", "mark"));
      stage.offer();
      Snapshot snapshot = control.snapshot();
      boolean applied = snapshot.revision == 7 && snapshot.failure == null && snapshot.refused.isEmpty() && control.excludes("other");
      return unknown && applied && control.waitsForClosedHosts() ? "true" : unknown + " " + applied + " " + snapshot.failure;
    }
  }
}
