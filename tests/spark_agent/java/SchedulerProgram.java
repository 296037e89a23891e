package blocklist.spark;

import io.fabric8.kubernetes.api.model.ObjectMeta;
import io.fabric8.kubernetes.api.model.Pod;
import io.fabric8.kubernetes.api.model.PodSpec;
import io.fabric8.kubernetes.client.Config;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import java.io.StringReader;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.api.java.function.VoidFunction;
import org.apache.spark.scheduler.OutputCommitCoordinator;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerExecutorExcluded;
import org.apache.spark.scheduler.SparkListenerExecutorUnexcluded;
import org.apache.spark.scheduler.SparkListenerNodeExcluded;
import org.apache.spark.scheduler.SparkListenerNodeUnexcluded;
import org.apache.spark.scheduler.TaskSchedulerImpl;

/*
 * Facts of the agent's classes with a scheduler of Spark, in this JVM alone. The argument is the URL of an API server of
 * Kubernetes, or of what looks like one. Prints a line for each fact: its name, a tab, and `true` or what is wrong.
 */
public final class SchedulerProgram {
  private static final Runnable NOTHING = () -> {};
  private static final String[] NO_NAMES = {};
  /* Of all pods. */
  private static final String ADDRESS = "10.1.0.5";
  static final CountDownLatch STARTED = new CountDownLatch(1);
  static final CountDownLatch RELEASED = new CountDownLatch(1);
  static final CountDownLatch COMMITTING = new CountDownLatch(1);
  static final CountDownLatch COMMITTED = new CountDownLatch(1);

  /* A task that does not end when it is killed. */
  public static final class Stubborn implements VoidFunction<Object> {
    private static final long serialVersionUID = 1;

    public void call(Object number) {
      STARTED.countDown();
      while (true) {
        try {
          RELEASED.await();
          return;
        } catch (InterruptedException e) {
          continue;
        }
      }
    }
  }

  /* Runs this in one task. */
  private static final class Job extends Thread {
    private final JavaSparkContext spark;
    private final VoidFunction<Object> work;
    volatile boolean failed = false;

    Job(JavaSparkContext spark, VoidFunction<Object> work) {
      this.spark = spark;
      this.work = work;
    }

    public void run() {
      try {
        oneTask(spark).foreach(work);
      } catch (Exception e) {
        failed = true;
        e.printStackTrace();
      }
    }
  }

  public static void main(String[] arguments) throws Exception {
    SparkConf conf = new SparkConf().setMaster("local[2]").setAppName("facts").set("spark.ui.enabled", "false");
    conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1");
    conf.set("spark.locality.wait", LocalityFacts.WAIT_MILLIS + "ms");
    JavaSparkContext spark = new JavaSparkContext(conf);
    // The scheduler knows a host after the first offer.
    oneTask(spark).count();
    print("what an executor's host is called may be unknown", unknownNames(spark));
    print("executors lost beyond the limit", lostExecutors(spark));
    print("a report of a thousand lost executors holds up no task", lostExecutorsCost(spark));
    print("a killed task that still runs is killed again", killedTask(spark));
    print("a task that commits its output is not killed", committingTask(spark));
    print("an evacuation that is limited is refused with its table", limitedEvacuation(spark));
    print("a host that was closed gets no task before its refusal is reported", announcedHost(spark));
    print("of the executors of a host with a canary block one gets tasks", canaryBlock(spark));
    print("closed executors are shown as excluded", shownExecutors(spark));
    print("blocks end by the clock of the service", serviceClock());
    print("an address that is used again", usedAddress(spark));
    print("a pod that is made while the template changes", madePod(spark, arguments[0]));
    printLocality(spark);
    System.out.flush();
    Runtime.getRuntime().halt(0);
  }

  private static void printLocality(JavaSparkContext spark) throws Exception {
    LocalityFacts facts = new LocalityFacts(spark, host(spark));
    addExecutor(spark, "11", "other");
    SchedulerControl control = control(spark, new GivenNames(NO_NAMES));
    try {
      print("tasks do not wait for a closed host, and new stages use it again", facts.doNotWait(control));
      print("a task keeps its open places", facts.keepOpenPlaces(control));
      print("a canary keeps the tasks whose data it has", facts.keepCanary(control));
      print("a hundred thousand pending tasks hold up the scheduler for a moment", facts.boundedCost(control));
      print("without Spark's lists a host is closed all the same", facts.unknownSpark(control));
    } finally {
      control.close();
      removeExecutor(spark, new BlocklistTracker(spark.sc(), null, control), "11", "other");
      removeHost(spark, "other");
    }
  }

  private static void print(String fact, Object result) {
    System.out.println("FACT\t" + fact + "\t" + result);
  }

  private static JavaRDD<Object> oneTask(JavaSparkContext spark) {
    return spark.parallelize(Collections.<Object>singletonList(1), 1);
  }

  private static TaskSchedulerImpl scheduler(JavaSparkContext spark) {
    return (TaskSchedulerImpl) spark.sc().taskScheduler();
  }

  private static SchedulerControl control(JavaSparkContext spark, HostDirectory directory) {
    return new SchedulerControl(spark.sc(), directory, new ServiceClock(), "agent", NOTHING);
  }

  /* With the table of evacuations. */
  private static HostExclusions evacuating(JavaSparkContext spark, HostDirectory directory) throws Exception {
    HostExclusions exclusions = new HostExclusions(spark.sc(), scheduler(spark), directory, new EvacuationLimit(), new ServiceClock(), NOTHING);
    exclusions.apply(table("evacuate"));
    return exclusions;
  }

  /* A name and an address. */
  private static Table table(String action) throws Exception {
    return Table.read(new StringReader("blocklist-table 1 5 2\n" + entry("w1", action, "w1") + entry("10.0.0.7", action, "10.0.0.7")));
  }

  /* This host alone, as the node x. */
  static Table tableOf(String host, String action) throws Exception {
    return Table.read(new StringReader("blocklist-table 1 7 1\n" + entry(host, action, "x")));
  }

  private static String entry(String key, String action, String id) {
    return key + "\t" + Long.MAX_VALUE + "\t" + action + "\t" + id + "\tdisk\n";
  }

  /* Tasks may run on a host whose names are looked up: what was acknowledged before may not be so there. */
  private static Object unknownNames(JavaSparkContext spark) throws Exception {
    GivenNames directory = new GivenNames(null);
    SchedulerControl control = control(spark, directory);
    try {
      control.apply(table("mark"));
      Snapshot before = control.snapshot();
      directory.known = NO_NAMES;
      Snapshot after = control.snapshot();
      boolean unknown = before.revision == -1 && before.refused.keySet().equals(Collections.singleton("w1"));
      if (unknown && after.revision == 5 && after.refused.isEmpty()) return "true";
      return before.revision + " " + before.refused + ", then " + after.revision + " " + after.refused;
    } finally {
      control.close();
    }
  }

  private static Object lostExecutors(JavaSparkContext spark) throws Exception {
    GivenNames directory = new GivenNames(NO_NAMES);
    HostExclusions exclusions = evacuating(spark, directory);
    UnknownTasks unknown = new UnknownTasks(directory);
    int last = UnknownTasks.MAX_LOST + 1;
    for (int i = 1; i <= last; i++) unknown.onRemoved(String.valueOf(i), new Executor(String.valueOf(i), "h" + i, "h" + i, 2), 0);
    // The scheduler of YARN still lists it.
    List<Executor> listed = new ArrayList<>(Collections.singleton(new Executor(String.valueOf(last), "h" + last, "h" + last, 0)));
    Executor found = unknown.observe(listed, UnknownTasks.LOST_MILLIS - 1).get(0);
    Map<String, String> refused = unknown.refused(exclusions, System.currentTimeMillis());
    unknown.observe(new ArrayList<>(), UnknownTasks.LOST_MILLIS);
    Map<String, String> later = unknown.refused(exclusions, System.currentTimeMillis());
    boolean refuses = refused.keySet().equals(new HashSet<>(Arrays.asList(new Object[] {"w1", "10.0.0.7"})));
    if (found.running < 0 && refuses && String.valueOf(refused).indexOf(": 1 more executors") > 0 && later.isEmpty()) return "true";
    return found.running + " " + refused + " " + later;
  }

  private static Object killedTask(JavaSparkContext spark) throws Exception {
    Job job = new Job(spark, new Stubborn());
    job.start();
    STARTED.await();
    GivenNames directory = new GivenNames(NO_NAMES);
    SchedulerState state = new SchedulerState(scheduler(spark));
    UnknownTasks unknown = new UnknownTasks(directory);
    Evacuation evacuation = new Evacuation(spark.sc(), state, new EvacuationLimit(), unknown);
    Plan plan = evacuationPlan(spark);
    List<Evacuation.Kill> killed;
    synchronized (scheduler(spark)) {
      killed = evacuation.tasksToKill(plan, 0);
    }
    evacuation.kill(killed);
    // It has just been launched, and may have missed the first interrupt. From then on it may be cleaning up.
    long second = Evacuation.KILL_AGAIN_MILLIS;
    long third = second + Evacuation.PATIENCE_MILLIS;
    List<Evacuation.Kill> early, again;
    boolean repeated;
    synchronized (scheduler(spark)) {
      early = evacuation.tasksToKill(plan, second - 1);
      again = evacuation.tasksToKill(plan, second);
      repeated = early.isEmpty() && again.size() == 1;
      repeated &= evacuation.tasksToKill(plan, third - 1).isEmpty() && evacuation.tasksToKill(plan, third).size() == 1;
    }
    int running;
    long last = third + 4 * UnknownTasks.SETTLE_MILLIS;
    synchronized (scheduler(spark)) {
      evacuation.observe(last);
      running = unknown.observe(state.executors(directory), last).get(0).running;
    }
    RELEASED.countDown();
    job.join(120000);
    while (true) {
      synchronized (scheduler(spark)) {
        if (state.tasks().isEmpty()) break;
      }
      Thread.sleep(50);
    }
    synchronized (scheduler(spark)) {
      evacuation.observe(last + 1000);
      int settling = unknown.observe(state.executors(directory), last + 1000).get(0).running;
      long end = last + UnknownTasks.SETTLE_MILLIS;
      int settled = unknown.observe(state.executors(directory), end).get(0).running;
      if (killed.size() == 1 && repeated && running == 1 && settling == -1 && settled == 0) return "true";
      return killed.size() + " killed, then again " + early.size() + " and " + again.size() + ", then " + running + ", " + settling + ", " + settled;
    }
  }

  /* The host of this JVM is evacuated, and another one is open. */
  private static Plan evacuationPlan(JavaSparkContext spark) {
    Map<String, Table.Entry> entries = new HashMap<>();
    String host = host(spark);
    entries.put(host, new Table.Entry(1, Long.MAX_VALUE, Table.Entry.EVACUATE, host, "disk"));
    List<LiveHost> hosts = new ArrayList<>();
    hosts.add(new LiveHost(host, host, true, new String[0], LiveHost.LONG_AGO));
    hosts.add(new LiveHost("other", "other", true, new String[0], LiveHost.LONG_AGO));
    return Plan.make(new Table(5, entries), hosts, new Plan.Requirements(1, 0, 0, false), 0);
  }

  private static String host(JavaSparkContext spark) {
    return scheduler(spark).executorIdToHost().get("driver").get();
  }

  /* A further host whose executor runs nothing. */
  private static void addHost(JavaSparkContext spark, String host) throws Exception {
    scala.collection.mutable.HashSet<String> executors = new scala.collection.mutable.HashSet<>();
    executors.add("on " + host);
    synchronized (scheduler(spark)) {
      addIdle(spark, "on " + host);
      scheduler(spark).executorIdToHost().put("on " + host, host);
      scheduler(spark).hostToExecutors().put(host, executors);
    }
  }

  private static void addIdle(JavaSparkContext spark, String executor) throws Exception {
    Field running = TaskSchedulerImpl.class.getDeclaredField("executorIdToRunningTaskIds");
    running.setAccessible(true);
    @SuppressWarnings("unchecked")
    scala.collection.mutable.HashMap<String, Object> tasks = (scala.collection.mutable.HashMap<String, Object>) running.get(scheduler(spark));
    tasks.put(executor, new scala.collection.mutable.HashSet<Object>());
  }

  private static void removeHost(JavaSparkContext spark, String host) {
    synchronized (scheduler(spark)) {
      scheduler(spark).hostToExecutors().remove(host);
      scheduler(spark).executorIdToHost().remove("on " + host);
    }
  }

  private static String worker(int number) {
    return "worker-" + number + ".example.com";
  }

  /* In a second, a scheduler starts thousands of tasks. */
  private static Object lostExecutorsCost(JavaSparkContext spark) throws Exception {
    for (int i = 0; i < UnknownTasks.MAX_LOST; i++) addHost(spark, worker(i));
    try {
      GivenNames directory = new GivenNames(NO_NAMES);
      HostExclusions exclusions = evacuating(spark, directory);
      UnknownTasks unknown = new UnknownTasks(directory);
      for (int i = 0; i < UnknownTasks.MAX_LOST; i++) unknown.onRemoved("lost " + i, new Executor("lost " + i, worker(i), worker(i), 2), 0);
      long least = Long.MAX_VALUE;
      for (int i = 0; i < 10; i++) {
        long began = System.nanoTime();
        unknown.refused(exclusions, System.currentTimeMillis());
        least = Math.min(least, System.nanoTime() - began);
      }
      return least < 20000000L ? "true" : least / 1000 + " microseconds";
    } finally {
      for (int i = 0; i < UnknownTasks.MAX_LOST; i++) removeHost(spark, worker(i));
    }
  }

  /* Commits its output, which takes until it is released, as Spark's own tasks do that write files. */
  public static final class Committer implements VoidFunction<Object> {
    private static final long serialVersionUID = 1;

    public void call(Object number) throws Exception {
      TaskContext task = TaskContext.get();
      OutputCommitCoordinator coordinator = SparkEnv.get().outputCommitCoordinator();
      boolean permitted = coordinator.canCommit(task.stageId(), task.stageAttemptNumber(), task.partitionId(), task.attemptNumber());
      COMMITTING.countDown();
      if (permitted) COMMITTED.await();
    }
  }

  private static Object committingTask(JavaSparkContext spark) throws Exception {
    Job job = new Job(spark, new Committer());
    job.start();
    COMMITTING.await();
    GivenNames directory = new GivenNames(NO_NAMES);
    SchedulerState state = new SchedulerState(scheduler(spark));
    Evacuation evacuation = new Evacuation(spark.sc(), state, new EvacuationLimit(), new UnknownTasks(directory));
    Plan plan = evacuationPlan(spark);
    List<Evacuation.Kill> early, late;
    boolean denied, denies;
    synchronized (scheduler(spark)) {
      RunningTask task = state.tasks().get(0);
      early = evacuation.tasksToKill(plan, 0);
      early.addAll(evacuation.tasksToKill(plan, Evacuation.COMMIT_MILLIS - 1));
      late = evacuation.tasksToKill(plan, Evacuation.COMMIT_MILLIS);
      OutputCommits commits = new OutputCommits(spark.sc());
      denied = commits.deny(task);
      OutputCommitCoordinator coordinator = spark.sc().env().outputCommitCoordinator();
      RunningTask other = new RunningTask(-1L, task.executor, task.host, scheduler(spark).taskIdToTaskSetManager().get(task.id));
      denies = commits.deny(other) && !coordinator.handleAskPermissionToCommit(other.stage(), other.stageAttempt(), 0, other.attempt());
    }
    COMMITTED.countDown();
    job.join(120000);
    if (early.isEmpty() && late.size() == 1 && !denied && denies && !job.failed) return "true";
    return early.size() + " " + late.size() + " " + denied + " " + denies + " " + job.failed;
  }

  /* A list that flaps: the fourth evacuation in a minute. What is seen of the table at any moment has the refusal. */
  private static Object limitedEvacuation(JavaSparkContext spark) throws Exception {
    GivenNames directory = new GivenNames(NO_NAMES);
    String host = host(spark);
    addHost(spark, "other");
    SchedulerControl control = control(spark, directory);
    try {
      for (int i = 0; i <= EvacuationLimit.MAX_PER_HOST; i++) {
        control.apply(Table.EMPTY);
        control.apply(tableOf(host, "evacuate"));
      }
      Snapshot snapshot = control.snapshot();
      return snapshot.revision == 7 && snapshot.refused.containsKey("x") ? "true" : snapshot.revision + " " + snapshot.refused;
    } finally {
      control.close();
      removeHost(spark, "other");
    }
  }

  /* The last open host leaves: the closed one is to be opened, and its block counts as applied until it is refused. */
  private static Object announcedHost(JavaSparkContext spark) throws Exception {
    GivenNames directory = new GivenNames(NO_NAMES);
    String host = host(spark);
    addHost(spark, "other");
    SchedulerControl control = control(spark, directory);
    try {
      control.apply(tableOf(host, "mark"));
      boolean applied = control.snapshot().refused.isEmpty() && control.excludes(host);
      removeHost(spark, "other");
      control.check();
      Snapshot early = control.snapshot();
      boolean waits = early.refused.containsKey("x") && control.excludes(host);
      control.onReported(early.plan);
      boolean reported = !control.excludes(host) && control.snapshot().refused.containsKey("x");
      // Without a service that takes reports it opens as well.
      addHost(spark, "other");
      control.check();
      boolean closed = control.excludes(host);
      removeHost(spark, "other");
      control.check();
      long began = System.nanoTime();
      for (; control.excludes(host) && System.nanoTime() - began < 60000000000L; Thread.sleep(20)) control.check();
      return applied && waits && reported && closed && !control.excludes(host) ? "true" : applied + " " + waits + " " + reported + " " + closed;
    } finally {
      control.close();
      removeHost(spark, "other");
    }
  }

  private static void addExecutor(JavaSparkContext spark, String id, String host) throws Exception {
    addHost(spark, host);
    synchronized (scheduler(spark)) {
      scala.collection.mutable.HashSet<String> executors = scheduler(spark).hostToExecutors().get(host).get();
      executors.add(id);
      addIdle(spark, id);
      scheduler(spark).executorIdToHost().put(id, host);
    }
  }

  /* As Spark does it when an executor is lost. */
  private static void removeExecutor(JavaSparkContext spark, BlocklistTracker tracker, String id, String host) {
    synchronized (scheduler(spark)) {
      (scheduler(spark).hostToExecutors().get(host).get()).remove(id);
      scheduler(spark).executorIdToHost().remove(id);
      tracker.handleRemovedExecutor(id);
    }
  }

  private static BlocklistTracker tracker(JavaSparkContext spark) {
    return (BlocklistTracker) scheduler(spark).healthTrackerOpt().get();
  }

  /* The executors of the host `other` that may get tasks, as Spark asks in a round of offers. */
  private static String offered(JavaSparkContext spark) {
    TreeSet<String> offered = new TreeSet<>();
    synchronized (scheduler(spark)) {
      BlocklistTracker tracker = tracker(spark);
      tracker.applyExcludeOnFailureTimeout();
      for (String id : Scala.each(scheduler(spark).hostToExecutors().get("other").get().iterator())) {
        if (!tracker.isNodeExcluded("other") && !tracker.isExecutorExcluded(id)) offered.add(id);
      }
    }
    return offered.toString();
  }

  /* "on other" is the executor that addHost adds; of all, it sorts last. */
  private static Object canaryBlock(JavaSparkContext spark) throws Exception {
    SchedulerControl control = control(spark, new GivenNames(NO_NAMES));
    addExecutor(spark, "11", "other");
    List<String> seen = new ArrayList<>();
    try {
      control.apply(Table.EMPTY);
      seen.add(offered(spark));
      control.apply(canaryOf("other"));
      seen.add(offered(spark) + control.snapshot().revision + control.snapshot().refused + control.snapshot().plan.canaries);
      (scheduler(spark).hostToExecutors().get("other").get()).add("2");
      scheduler(spark).executorIdToHost().put("2", "other");
      seen.add(offered(spark));
      removeExecutor(spark, tracker(spark), "11", "other");
      seen.add(offered(spark));
      control.apply(tableOf("other", "mark"));
      seen.add(offered(spark));
      control.apply(canaryOf("other"));
      seen.add(offered(spark));
      control.apply(Table.EMPTY);
      seen.add(offered(spark));
      String expected = "[[11, on other], [11]7{}{other=[11]}, [11], [2], [], [2], [2, on other]]";
      return seen.toString().equals(expected) ? "true" : seen;
    } finally {
      control.close();
      removeExecutor(spark, new BlocklistTracker(spark.sc(), null, control), "2", "other");
      removeHost(spark, "other");
    }
  }

  static Table canaryOf(String host) throws Exception {
    return Table.read(new StringReader("blocklist-table 1 7 1\n" + entry(host, "canary", "x")));
  }

  /* What Spark's UI shows: an event of a host changes what is shown of its executors. */
  private static Object shownExecutors(JavaSparkContext spark) throws Exception {
    final List<String> seen = Collections.synchronizedList(new ArrayList<>());
    spark.sc().addSparkListener(new SparkListener() {
      public void onExecutorExcluded(SparkListenerExecutorExcluded event) {
        seen.add("-" + event.executorId());
      }

      public void onExecutorUnexcluded(SparkListenerExecutorUnexcluded event) {
        seen.add("+" + event.executorId());
      }

      public void onNodeExcluded(SparkListenerNodeExcluded event) {
        seen.add("-" + event.hostId());
      }

      public void onNodeUnexcluded(SparkListenerNodeUnexcluded event) {
        seen.add("+" + event.hostId());
      }
    });
    SchedulerControl control = control(spark, new GivenNames(NO_NAMES));
    addExecutor(spark, "11", "other");
    try {
      control.apply(canaryOf("other"));
      control.apply(tableOf("other", "mark"));
      control.apply(canaryOf("other"));
      control.close();
      spark.sc().listenerBus().waitUntilEmpty();
      String expected = "[-on other, +on other, -other, +other, -on other, +on other]";
      return seen.toString().equals(expected) ? "true" : seen;
    } finally {
      control.close();
      synchronized (scheduler(spark)) {
        scheduler(spark).executorIdToHost().remove("11");
      }
      removeHost(spark, "other");
    }
  }

  private static Object serviceClock() {
    final long[] time = {1000000, 0};
    ServiceClock clock = new ServiceClock() {
      long own() {
        return time[0];
      }

      long monotonic() {
        return time[1];
      }
    };
    boolean unknown = clock.now() == 1000000;
    clock.onDate(999000);
    boolean agrees = clock.now() == 1000000;
    // Somebody sets this machine's clock, and 300 ms pass.
    time[0] = 90000000;
    time[1] = 300;
    boolean jumped = clock.now() == 999300;
    clock.onDate(0);
    boolean kept = clock.now() == 999300;
    return unknown && agrees && jumped && kept ? "true" : unknown + " " + agrees + " " + jumped + " " + kept;
  }

  private static Object usedAddress(JavaSparkContext spark) throws Exception {
    TaskSchedulerImpl scheduler = new TaskSchedulerImpl(spark.sc());
    GivenPods pods = new GivenPods(null);
    PodDirectory directory = new PodDirectory(pods, scheduler);
    Collection<String> hosts = Collections.singleton(ADDRESS);
    pods.seen = Collections.singletonMap(1L, pod(1, "node-a", null));
    scheduler.executorIdToHost().put("1", ADDRESS);
    directory.retain(hosts);
    boolean known = "node-a".equals(directory.node(ADDRESS));
    // Spark forgets the pod before its executor, which is still there.
    pods.seen = new HashMap<>();
    directory.retain(hosts);
    known &= "node-a".equals(directory.node(ADDRESS)) && !directory.isPending(ADDRESS);
    // Its address is another pod's, of which Spark has missed the node.
    scheduler.executorIdToHost().put("2", ADDRESS);
    directory.retain(hosts);
    boolean unknown = directory.node(ADDRESS) == null && directory.names(ADDRESS) == null && directory.isPending(ADDRESS);
    unknown &= "node-a".equals(directory.executorNode("1", ADDRESS)) && directory.executorNode("2", ADDRESS) == null;
    pods.seen = Collections.singletonMap(2L, pod(2, "node-b", null));
    directory.retain(hosts);
    boolean found = "node-b".equals(directory.node(ADDRESS)) && "node-a".equals(directory.executorNode("1", ADDRESS));
    found &= "node-b".equals(directory.executorNode("2", ADDRESS));
    return known && unknown && found ? "true" : known + " " + unknown + " " + found;
  }

  private static Object madePod(JavaSparkContext spark, String url) throws Exception {
    Config config = Config.empty();
    config.setMasterUrl(url);
    KubernetesClient client = new KubernetesClientBuilder().withConfig(config).build();
    GivenNames directory = new GivenNames(NO_NAMES);
    SchedulerControl control = control(spark, directory);
    GivenPods pods = new GivenPods(client);
    pods.next = Collections.singletonMap(7L, pod(7, null, "uid-7"));
    PodPlacementLoop loop = new PodPlacementLoop(spark.sc(), control, pods);
    try {
      control.apply(table("mark"));
      control.setPlacement(loop);
      loop.runOnce();
      long early = control.snapshot().revision;
      // The next one has its name. The server deletes by uid.
      pods.next = new HashMap<>();
      pods.seen = new HashMap<>();
      loop.runOnce();
      long settled = control.snapshot().revision;
      return early == -1 && settled == 5 ? "true" : early + " " + settled + " " + loop.status().refused(table("mark"), 0);
    } finally {
      loop.close();
      loop.onEnd();
      control.close();
    }
  }

  private static ExecutorPods.Pod pod(long id, String node, String uid) {
    ObjectMeta metadata = new ObjectMeta();
    metadata.setName("exec-" + id);
    metadata.setNamespace("jobs");
    metadata.setUid(uid);
    Pod pod = new Pod();
    pod.setMetadata(metadata);
    pod.setSpec(new PodSpec());
    return new ExecutorPods.Pod(id, "exec-" + id, node, new String[0], new String[] {ADDRESS}, false, false, pod);
  }
}
