import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import org.apache.spark.ExecutorAllocationClient;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.HealthTracker;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerNodeExcluded;
import org.apache.spark.scheduler.SparkListenerNodeExcludedForStage;
import org.apache.spark.scheduler.SparkListenerNodeUnexcluded;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskStart;
import org.apache.spark.scheduler.TaskInfo;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.apache.spark.scheduler.TaskSetExcludelist;
import org.apache.spark.scheduler.TaskSetManager;
import org.apache.spark.util.SystemClock;

/*
 * A HealthTracker that wraps the application's own one, if there is one, and adds the blocked hosts to its exclusions.
 * The state of the application's own tracker is never changed, so Spark's exclusions stay before, during and after a
 * block.
 *
 * THREADING: as in every HealthTracker, the monitor of the TaskSchedulerImpl guards all state. Spark holds it when it
 * calls; the methods for Python acquire it. Exceptions: excludedNodeList and volatile fields.
 *
 * Spark calls applyExcludeOnFailureTimeout at the start of each round of resource offers, before it checks exclusions
 * and before it may abort a job without hosts. That call ends blocks, matches new hosts, and reopens a host when the
 * last open one is lost. So no round of offers finds all hosts blocked.
 *
 * Memory: `blocked` and `names` are as large as the last plan, `killed` as the number of running tasks.
 *
 * Compiled at run time by Janino, which Spark ships: no lambdas, no inference of generic types.
 */
public class BlocklistBridge extends HealthTracker {
  /* Set to the maximum while the bridge is installed in an application without excludeOnFailure: Spark 3.5 enables all
     of it as soon as there is a HealthTracker. */
  private static final String[] LIMITS = {
    "spark.excludeOnFailure.task.maxTaskAttemptsPerExecutor", "spark.excludeOnFailure.task.maxTaskAttemptsPerNode",
    "spark.excludeOnFailure.stage.maxFailedTasksPerExecutor", "spark.excludeOnFailure.stage.maxFailedExecutorsPerNode"
  };
  private static final long REFRESH_MILLIS = 1000;

  private static class Block {
    final int rank;
    final long end;
    final boolean evacuate;
    final String reason;

    Block(int rank, String[] line) {
      this.rank = rank;
      end = Long.parseLong(line[2]);
      evacuate = "evacuate".equals(line[3]);
      reason = line[4];
    }
  }

  /* Collects from Spark's events the exclusions for running stages, and the tasks that Spark speculated. It has its own
     monitor, because Spark calls it in the listener bus thread. Memory grows with the running stages, and with running
     tasks if speculation is on; `pending` holds at most 10,000 lines. */
  private static class Observer extends SparkListener {
    private final boolean speculation;
    private final HashMap excluded = new HashMap();
    private final HashMap running = new HashMap();
    private final LinkedHashMap pending = new LinkedHashMap();

    Observer(boolean speculation) {
      this.speculation = speculation;
    }

    public synchronized void onNodeExcludedForStage(SparkListenerNodeExcludedForStage event) {
      String stage = event.stageId() + "." + event.stageAttemptId();
      String line = "stage\t" + event.hostId() + "\t" + stage + "\t\n";
      if (!excluded.containsKey(stage)) excluded.put(stage, new HashSet());
      ((HashSet) excluded.get(stage)).add(line);
      record(line);
    }

    public synchronized void onTaskStart(SparkListenerTaskStart event) {
      TaskInfo task = event.taskInfo();
      if (!speculation || task == null) return;
      String stage = event.stageId() + "." + event.stageAttemptId();
      Integer index = Integer.valueOf(task.index());
      HashMap tasks = (HashMap) running.get(stage);
      if (!task.speculative()) {
        if (tasks == null) running.put(stage, tasks = new HashMap());
        tasks.put(index, task.host());
      } else if (tasks != null && tasks.containsKey(index)) {
        record("slow\t" + tasks.get(index) + "\t" + stage + "\t" + index + "\n");
      }
    }

    public synchronized void onTaskEnd(SparkListenerTaskEnd event) {
      TaskInfo task = event.taskInfo();
      if (task == null || task.speculative()) return;
      String stage = event.stageId() + "." + event.stageAttemptId();
      HashMap tasks = (HashMap) running.get(stage);
      if (tasks == null) return;
      tasks.remove(Integer.valueOf(task.index()));
      if (tasks.isEmpty()) running.remove(stage);
    }

    public synchronized void onStageCompleted(SparkListenerStageCompleted event) {
      String stage = event.stageInfo().stageId() + "." + event.stageInfo().attemptNumber();
      excluded.remove(stage);
      running.remove(stage);
    }

    private void record(String line) {
      if (pending.size() < 10000) pending.put(line, line);
    }

    synchronized String drain() {
      for (Iterator it = excluded.values().iterator(); it.hasNext();)
        for (Iterator lines = ((HashSet) it.next()).iterator(); lines.hasNext();) record((String) lines.next());
      StringBuilder s = new StringBuilder();
      for (Iterator it = pending.keySet().iterator(); it.hasNext();) s.append(it.next());
      pending.clear();
      return s.toString();
    }
  }

  private final SparkContext sc;
  private final TaskSchedulerImpl scheduler;
  private final HealthTracker own;
  private final boolean yarn;
  private final boolean withoutFailureHandling;
  private final HashMap limitsBefore = new HashMap();

  private Map blocked = new LinkedHashMap();
  private Map names = new HashMap();
  private final Map opened = new LinkedHashMap();
  private final HashSet killed = new HashSet();
  private HashMap live = new HashMap();
  private int keep = 1;
  private boolean installed = false;
  private Observer observer = null;
  private String failure = null;
  private volatile long epoch = 1;
  private volatile long moves = 0;
  private volatile String[] listed = new String[0];

  private long removals = 0;
  private long nextEnd = Long.MAX_VALUE;
  private long nextRefresh = 0;
  private String seen = "";

  public BlocklistBridge(Object context) throws Exception {
    super(((SparkContext) context).listenerBus(), new SparkConf(false), client((SparkContext) context), new SystemClock());
    sc = (SparkContext) context;
    scheduler = (TaskSchedulerImpl) sc.taskScheduler();
    own = scheduler.healthTrackerOpt().isDefined() ? (HealthTracker) scheduler.healthTrackerOpt().get() : null;
    yarn = sc.schedulerBackend().getClass().getName().indexOf("Yarn") >= 0;
    withoutFailureHandling = own == null && !"true".equals(sc.conf().get("spark.excludeOnFailure.taskAndStage.enabled", "false"));
  }

  private static scala.Option client(SparkContext sc) {
    Object backend = sc.schedulerBackend();
    return backend instanceof ExecutorAllocationClient ? scala.Option.apply(backend) : scala.Option.empty();
  }

  /* ---- called by Python ---- */

  public void install() throws Exception {
    synchronized (scheduler) {
      if (installed) return;
      for (int i = 0; withoutFailureHandling && i < LIMITS.length; i++) {
        limitsBefore.put(LIMITS[i], sc.conf().getOption(LIMITS[i]));
        sc.conf().set(LIMITS[i], String.valueOf(Integer.MAX_VALUE));
      }
      put(this);
      installed = true;
      observe();
    }
  }

  /* Lift all blocks and leave Spark as it was. */
  public void uninstall() throws Exception {
    if (sc.isStopped()) return;
    synchronized (scheduler) {
      if (!installed) return;
      replace(new LinkedHashMap());
      dropBlocks();
      put(own);
      for (Iterator it = limitsBefore.entrySet().iterator(); it.hasNext();) {
        Map.Entry e = (Map.Entry) it.next();
        scala.Option before = (scala.Option) e.getValue();
        if (before.isDefined()) sc.conf().set((String) e.getKey(), (String) before.get());
        else sc.conf().remove((String) e.getKey());
      }
    }
    if (observer != null) sc.removeSparkListener(observer);
    observer = null;
    sc.schedulerBackend().reviveOffers();
  }

  /* Start to record Spark's own exclusions and speculations. */
  public synchronized void witness() {
    if (observer != null || sc.isStopped()) return;
    observer = new Observer("true".equals(sc.conf().get("spark.speculation", "false")));
    sc.addSparkListener(observer);
  }

  /* Lines: "application HOST" for each host that the application's own tracker excludes now; since the last call,
     "stage HOST STAGE" for each exclusion for a stage and "slow HOST STAGE TASK" for each speculated task. Blocks of
     this bridge are not included. */
  public String seen() {
    StringBuilder s = new StringBuilder();
    if (own != null) {
      long now = System.currentTimeMillis();
      synchronized (scheduler) {
        scala.collection.Iterator it = own.nodeIdToExcludedExpiryTime().iterator();
        while (it.hasNext()) {
          scala.Tuple2 e = (scala.Tuple2) it.next();
          if (((Long) e._2()).longValue() > now) s.append("application\t").append(e._1()).append("\t\t\n");
        }
      }
    }
    Observer current = observer;
    return current == null ? s.toString() : s.append(current.drain()).toString();
  }

  /* A number that grows when hosts are added, removed, excluded or freed by Spark, and when a block ends or is lifted
     here; -1 if the application has ended. */
  public long epoch() {
    if (sc.isStopped()) return -1;
    synchronized (scheduler) {
      observe();
      return epoch;
    }
  }

  /* Lines: epoch N; live HOST open|excluded; blocked HOST END; opened HOST last|stuck. */
  public String state() {
    synchronized (scheduler) {
      observe();
      StringBuilder s = new StringBuilder("epoch\t").append(epoch).append('\n');
      for (Iterator it = live.entrySet().iterator(); it.hasNext();) {
        Map.Entry e = (Map.Entry) it.next();
        s.append("live\t").append(e.getKey()).append('\t').append(e.getValue()).append('\n');
      }
      for (Iterator it = blocked.entrySet().iterator(); it.hasNext();) {
        Map.Entry e = (Map.Entry) it.next();
        s.append("blocked\t").append(e.getKey()).append('\t').append(((Block) e.getValue()).end).append('\n');
      }
      for (Iterator it = opened.entrySet().iterator(); it.hasNext();) {
        Map.Entry e = (Map.Entry) it.next();
        s.append("opened\t").append(e.getKey()).append('\t').append(e.getValue()).append('\n');
      }
      return s.toString();
    }
  }

  /* A number that grows when executors are added or removed; updated by observe(). */
  public long moves() {
    return moves;
  }

  /* Lines: EXECUTOR HOST RUNNING, with the number of running tasks. */
  public String executors() {
    synchronized (scheduler) {
      scala.collection.immutable.Map running = scheduler.runningTasksByExecutors();
      StringBuilder s = new StringBuilder();
      scala.collection.Iterator it = scheduler.executorIdToHost().iterator();
      while (it.hasNext()) {
        scala.Tuple2 e = (scala.Tuple2) it.next();
        scala.Option count = running.get(e._1());
        s.append(e._1()).append('\t').append(e._2()).append('\t').append(count.isDefined() ? count.get() : "0").append('\n');
      }
      return s.toString();
    }
  }

  /* Apply a plan atomically if it was made for the current epoch. Lines, the weakest block first:
     host|name KEY END mark|evacuate REASON. Returns "stale" if the epoch has changed, else "done" and a line HOST COUNT
     for each host with killed tasks. */
  public String apply(long madeFor, int keepHosts, String plan) {
    LinkedHashMap hosts = new LinkedHashMap();
    HashMap coming = new HashMap();
    String[] lines = plan.split("\n");
    for (int i = 0; i < lines.length; i++) {
      String[] line = lines[i].split("\t");
      if (line.length == 5) ("host".equals(line[0]) ? hosts : coming).put(line[1], new Block(i, line));
    }
    boolean freed;
    HashMap tasks;
    synchronized (scheduler) {
      if (failure != null) throw new IllegalStateException(failure);
      observe();
      if (epoch != madeFor || !installed) return "stale";
      keep = keepHosts;
      opened.clear();
      freed = replace(hosts);
      names = coming;
      refresh(System.currentTimeMillis());
      tasks = tasksToStop();
    }
    if (freed) sc.schedulerBackend().reviveOffers();
    return "done\n" + stop(tasks);
  }

  /* ---- called by Spark, which holds the monitor ---- */

  public void applyExcludeOnFailureTimeout() {
    if (own != null) own.applyExcludeOnFailureTimeout();
    try {
      observe();
    } catch (Throwable t) {
      /* An exception here would stop the scheduler, so all blocks are dropped; the next apply() reports the failure. */
      failure = t.toString();
      dropBlocks();
    }
  }

  public boolean isNodeExcluded(String host) {
    return blocked.containsKey(host) || (own != null && own.isNodeExcluded(host));
  }

  public boolean isExecutorExcluded(String executor) {
    return own != null && own.isExecutorExcluded(executor);
  }

  public void handleRemovedExecutor(String executor) {
    removals++;
    if (own != null) own.handleRemovedExecutor(executor);
  }

  public void killExcludedIdleExecutor(String executor) {
    if (own != null) own.killExcludedIdleExecutor(executor);
  }

  public void updateExcludedForFetchFailure(String host, String executor) {
    if (own != null) own.updateExcludedForFetchFailure(host, executor);
  }

  public void updateExcludedForSuccessfulTaskSet(int stage, int attempt, scala.collection.mutable.HashMap failures) {
    if (own != null) own.updateExcludedForSuccessfulTaskSet(stage, attempt, failures);
  }

  public scala.collection.mutable.HashMap nodeIdToExcludedExpiryTime() {
    return own == null ? super.nodeIdToExcludedExpiryTime() : own.nodeIdToExcludedExpiryTime();
  }

  public scala.collection.mutable.HashMap executorIdToExcludedStatus() {
    return own == null ? super.executorIdToExcludedStatus() : own.executorIdToExcludedStatus();
  }

  /* Called without the monitor, when executors are requested and registered. Spark rejects an executor that registers
     on a listed host, and a standalone Master then restarts it there for ever. So hosts are listed only on YARN, which
     allocates elsewhere. */
  public scala.collection.immutable.Set excludedNodeList() {
    scala.collection.immutable.Set hosts = own == null ? super.excludedNodeList() : own.excludedNodeList();
    String[] more = listed;
    for (int i = 0; i < more.length; i++) hosts = (scala.collection.immutable.Set) hosts.$plus(more[i]);
    return hosts;
  }

  /* ---- the caller holds the monitor ---- */

  private void put(HealthTracker tracker) throws Exception {
    Field f = TaskSchedulerImpl.class.getDeclaredField("healthTrackerOpt");
    f.setAccessible(true);
    f.set(scheduler, scala.Option.apply((Object) tracker));
  }

  private void dropBlocks() {
    installed = false;
    blocked = new LinkedHashMap();
    names = new HashMap();
    listed = new String[0];
  }

  /* Cheap, because Spark calls it in each round of offers: refreshes only after a change, or once a second. */
  private void observe() {
    if (!installed) return;
    long now = System.currentTimeMillis();
    String moved = scheduler.executorIdToHost().size() + " " + removals;
    if (own != null)
      moved += " " + own.nodeIdToExcludedExpiryTime().size() + " " + own.executorIdToExcludedStatus().size() + " " + own.nextExpiryTime();
    if (now >= nextEnd || now >= nextRefresh || now < nextRefresh - REFRESH_MILLIS || !moved.equals(seen)) {
      if (!moved.equals(seen)) moves++;
      seen = moved;
      refresh(now);
    }
    if (!withoutFailureHandling && !blocked.isEmpty()) openForStuckTasks();
  }

  private void refresh(long now) {
    nextRefresh = now + REFRESH_MILLIS;
    endBlocks(now);
    HashMap before = live;
    live = liveHosts();
    if (!live.equals(before)) epoch++;
    for (Iterator it = live.keySet().iterator(); it.hasNext();) {
      String host = (String) it.next();
      if (!before.containsKey(host) && !blocked.containsKey(host)) blockNew(host, now);
      /* The application's own tracker has just announced that the host is free, but it is still blocked here. */
      if ("excluded".equals(before.get(host)) && blocked.containsKey(host)) announce(host, true);
    }
    while (open() < keep && openWeakest("last"));
    list();
  }

  private void endBlocks(long now) {
    if (now < nextEnd) return;
    nextEnd = Long.MAX_VALUE;
    Object[] hosts = blocked.keySet().toArray();
    for (int i = 0; i < hosts.length; i++) {
      long end = ((Block) blocked.get(hosts[i])).end;
      if (now >= end) lift((String) hosts[i]);
      else nextEnd = Math.min(nextEnd, end);
    }
  }

  private HashMap liveHosts() {
    HashMap hosts = new HashMap();
    scala.collection.Iterator it = scheduler.hostToExecutors().iterator();
    while (it.hasNext()) {
      scala.Tuple2 e = (scala.Tuple2) it.next();
      String host = (String) e._1();
      if (scheduler.hasExecutorsAliveOnHost(host))
        hosts.put(host, ownExcludes(host, (scala.collection.mutable.HashSet) e._2()) ? "excluded" : "open");
    }
    return hosts;
  }

  private boolean ownExcludes(String host, scala.collection.mutable.HashSet executors) {
    if (own == null) return false;
    if (own.isNodeExcluded(host)) return true;
    scala.collection.Iterator it = executors.iterator();
    while (it.hasNext()) if (!own.isExecutorExcluded((String) it.next())) return false;
    return true;
  }

  /* A host that is not in the plan is blocked from its first offer if its name matches; the next plan includes it. */
  private void blockNew(String host, long now) {
    String name = host.toLowerCase(Locale.ROOT);
    int dot = name.indexOf('.');
    Block block = (Block) names.get(name);
    /* A short name with a trailing dot stands for all full names that begin with it. */
    if (block == null && dot > 0) block = (Block) names.get(name.substring(0, dot + 1));
    if (block == null || now >= block.end) return;
    blocked.put(host, block);
    nextEnd = Math.min(nextEnd, block.end);
    announce(host, true);
    epoch++;
  }

  private int open() {
    int n = 0;
    for (Iterator it = live.entrySet().iterator(); it.hasNext();) {
      Map.Entry e = (Map.Entry) it.next();
      if ("open".equals(e.getValue()) && !blocked.containsKey(e.getKey())) n++;
    }
    return n;
  }

  private boolean openWeakest(String why) {
    String weakest = null;
    int rank = Integer.MAX_VALUE;
    for (Iterator it = blocked.entrySet().iterator(); it.hasNext();) {
      Map.Entry e = (Map.Entry) it.next();
      Block block = (Block) e.getValue();
      if ("open".equals(live.get(e.getKey())) && block.rank < rank) {
        weakest = (String) e.getKey();
        rank = block.rank;
      }
    }
    if (weakest == null) return false;
    opened.put(weakest, why);
    lift(weakest);
    sc.schedulerBackend().reviveOffers();
    return true;
  }

  /* Spark keeps a failed task off the hosts where it failed, and aborts the job if no host is left for the task. This
     is the check that Spark makes before it aborts. */
  private void openForStuckTasks() {
    scala.collection.Iterator it = scheduler.rootPool().getSortedTaskSetQueue().iterator();
    while (it.hasNext()) {
      TaskSetManager tasks = (TaskSetManager) it.next();
      scala.Option failures = tasks.taskSetExcludelistHelperOpt();
      if (failures.isEmpty() || ((TaskSetExcludelist) failures.get()).execToFailures().isEmpty()) continue;
      while (tasks.getCompletelyExcludedTaskIfAny(scheduler.hostToExecutors()).isDefined() && openWeakest("stuck"));
    }
  }

  private void lift(String host) {
    blocked.remove(host);
    announce(host, false);
    epoch++;
  }

  /* Returns whether any host became free. */
  private boolean replace(LinkedHashMap hosts) {
    Map before = blocked;
    blocked = hosts;
    nextEnd = 0;
    boolean freed = false;
    for (Iterator it = before.keySet().iterator(); it.hasNext();) {
      String host = (String) it.next();
      if (hosts.containsKey(host)) continue;
      freed = true;
      announce(host, false);
    }
    for (Iterator it = hosts.keySet().iterator(); it.hasNext();) {
      String host = (String) it.next();
      if (!before.containsKey(host)) announce(host, true);
    }
    return freed;
  }

  /* For Spark's UI and event log. Hosts that the application's own tracker excludes are announced by that tracker. */
  private void announce(String host, boolean excluded) {
    if (own != null && own.isNodeExcluded(host)) return;
    long now = System.currentTimeMillis();
    if (excluded) sc.listenerBus().post(new SparkListenerNodeExcluded(now, host, 0));
    else sc.listenerBus().post(new SparkListenerNodeUnexcluded(now, host));
  }

  private void list() {
    if (!yarn) return;
    HashSet hosts = new HashSet();
    if (open() >= keep) {
      hosts.addAll(blocked.keySet());
      for (Iterator it = names.keySet().iterator(); it.hasNext();) {
        String name = (String) it.next();
        if (!name.endsWith(".")) hosts.add(name);
      }
    }
    listed = (String[]) hosts.toArray(new String[0]);
  }

  /* Hosts to evacuate, each with the ids of its tasks that were not killed before. */
  private HashMap tasksToStop() {
    HashMap tasks = new HashMap();
    HashSet running = new HashSet();
    scala.collection.Iterator it = scheduler.taskIdToExecutorId().iterator();
    while (it.hasNext()) {
      scala.Tuple2 e = (scala.Tuple2) it.next();
      running.add(e._1());
      scala.Option host = scheduler.executorIdToHost().get(e._2());
      Block block = host.isDefined() ? (Block) blocked.get(host.get()) : null;
      if (block == null || !block.evacuate || !killed.add(e._1())) continue;
      if (!tasks.containsKey(host.get())) tasks.put(host.get(), new ArrayList());
      ((ArrayList) tasks.get(host.get())).add(new Object[] {e._1(), block.reason});
    }
    killed.retainAll(running);
    return tasks;
  }

  /* Called without the monitor. A killed task does not count as failed; Spark restarts it on an open host. */
  private String stop(HashMap tasks) {
    StringBuilder counts = new StringBuilder();
    for (Iterator it = tasks.entrySet().iterator(); it.hasNext();) {
      Map.Entry e = (Map.Entry) it.next();
      ArrayList ids = (ArrayList) e.getValue();
      for (int i = 0; i < ids.size(); i++) {
        Object[] task = (Object[]) ids.get(i);
        sc.killTaskAttempt(((Long) task[0]).longValue(), true, (String) task[1]);
      }
      counts.append(e.getKey()).append('\t').append(ids.size()).append('\n');
    }
    return counts.toString();
  }
}
