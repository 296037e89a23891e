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
 * The blocklist as Spark's scheduler sees it: a HealthTracker that stands in front of the application's own one, if it
 * has one, and adds the blocked hosts to what that one excludes. The own one's state is never touched, so what Spark
 * found out by itself stands, before, during and after a block.
 *
 * THREADING: as with every HealthTracker, all state is guarded by the monitor of the TaskSchedulerImpl. Spark holds it
 * when it calls; the methods for Python take it. Exceptions are excludedNodeList and what is volatile.
 *
 * Spark calls applyExcludeOnFailureTimeout at the start of each round of offers, before it looks who is excluded and
 * before it may abort a job that no host is left for. So that is where blocks end, where hosts that are new are
 * matched, and where the last open host's death opens another one: no round ever sees the last host covered.
 *
 * What grows: `blocked` and `names` are as large as the last plan, `killed` as the tasks that run. Witness says its own.
 *
 * Compiled at run time by the Janino that Spark ships: no lambdas, no inference of generic types.
 */
public class BlocklistBridge extends HealthTracker {
  /* With these an application without failure handling of its own keeps none: Spark 3.5 switches all of it on as soon
     as there is a HealthTracker. */
  private static final String[] LIMITS = {
    "spark.excludeOnFailure.task.maxTaskAttemptsPerExecutor", "spark.excludeOnFailure.task.maxTaskAttemptsPerNode",
    "spark.excludeOnFailure.stage.maxFailedTasksPerExecutor", "spark.excludeOnFailure.stage.maxFailedExecutorsPerNode"
  };
  private static final long LOOK_MILLIS = 1000;

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

  /* What Spark finds out about hosts by itself, from its events: an exclusion for a stage, as long as the stage runs, and
     second copies of tasks that were slow. Has a monitor of its own: Spark calls it in the thread of its events.
     Grows with the stages and tasks that run, tasks only where Spark speculates; `news` to 10,000 until it is asked. */
  private static class Witness extends SparkListener {
    private final boolean speculation;
    private final HashMap excluded = new HashMap();
    private final HashMap running = new HashMap();
    private final LinkedHashMap news = new LinkedHashMap();

    Witness(boolean speculation) {
      this.speculation = speculation;
    }

    public synchronized void onNodeExcludedForStage(SparkListenerNodeExcludedForStage event) {
      String stage = event.stageId() + "." + event.stageAttemptId();
      String line = "stage\t" + event.hostId() + "\t" + stage + "\t\n";
      if (!excluded.containsKey(stage)) excluded.put(stage, new HashSet());
      ((HashSet) excluded.get(stage)).add(line);
      tell(line);
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
        tell("slow\t" + tasks.get(index) + "\t" + stage + "\t" + index + "\n");
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

    private void tell(String line) {
      if (news.size() < 10000) news.put(line, line);
    }

    synchronized String take() {
      for (Iterator it = excluded.values().iterator(); it.hasNext();)
        for (Iterator lines = ((HashSet) it.next()).iterator(); lines.hasNext();) tell((String) lines.next());
      StringBuilder s = new StringBuilder();
      for (Iterator it = news.keySet().iterator(); it.hasNext();) s.append(it.next());
      news.clear();
      return s.toString();
    }
  }

  private final SparkContext sc;
  private final TaskSchedulerImpl scheduler;
  private final HealthTracker own;
  private final boolean yarn;
  private final boolean quiet;
  private final HashMap limitsBefore = new HashMap();

  private Map blocked = new LinkedHashMap();
  private Map names = new HashMap();
  private final Map opened = new LinkedHashMap();
  private final HashSet killed = new HashSet();
  private HashMap live = new HashMap();
  private int keep = 1;
  private boolean installed = false;
  private Witness witness = null;
  private String failure = null;
  private volatile long epoch = 1;
  private volatile long moves = 0;
  private volatile String[] listed = new String[0];

  private long removals = 0;
  private long nextEnd = Long.MAX_VALUE;
  private long nextLook = 0;
  private String seen = "";

  public BlocklistBridge(Object context) throws Exception {
    super(((SparkContext) context).listenerBus(), new SparkConf(false), client((SparkContext) context), new SystemClock());
    sc = (SparkContext) context;
    scheduler = (TaskSchedulerImpl) sc.taskScheduler();
    own = scheduler.healthTrackerOpt().isDefined() ? (HealthTracker) scheduler.healthTrackerOpt().get() : null;
    yarn = sc.schedulerBackend().getClass().getName().indexOf("Yarn") >= 0;
    quiet = own == null && !"true".equals(sc.conf().get("spark.excludeOnFailure.taskAndStage.enabled", "false"));
  }

  private static scala.Option client(SparkContext sc) {
    Object backend = sc.schedulerBackend();
    return backend instanceof ExecutorAllocationClient ? scala.Option.apply(backend) : scala.Option.empty();
  }

  /* ---- for Python ---- */

  public void install() throws Exception {
    synchronized (scheduler) {
      if (installed) return;
      for (int i = 0; quiet && i < LIMITS.length; i++) {
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
      giveUp();
      put(own);
      for (Iterator it = limitsBefore.entrySet().iterator(); it.hasNext();) {
        Map.Entry e = (Map.Entry) it.next();
        scala.Option before = (scala.Option) e.getValue();
        if (before.isDefined()) sc.conf().set((String) e.getKey(), (String) before.get());
        else sc.conf().remove((String) e.getKey());
      }
    }
    if (witness != null) sc.removeSparkListener(witness);
    witness = null;
    sc.schedulerBackend().reviveOffers();
  }

  /* From now on remember what Spark finds out about hosts by itself. */
  public synchronized void witness() {
    if (witness != null || sc.isStopped()) return;
    witness = new Witness("true".equals(sc.conf().get("spark.speculation", "false")));
    sc.addSparkListener(witness);
  }

  /* Lines: application HOST for each that the application's own tracker excludes now; and, since this was asked last,
     stage HOST STAGE for each excluded for a stage, and slow HOST STAGE TASK for each task that was started elsewhere as
     well while it ran there. What was blocked here is not among them. */
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
    Witness present = witness;
    return present == null ? s.toString() : s.append(present.take()).toString();
  }

  /* A number that grows when hosts come or go, when Spark excludes or frees one, and when a block ended or had to be
     lifted here; -1 when the application has ended. */
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

  /* A number that grows when executors come or go, as seen by the last look. */
  public long moves() {
    return moves;
  }

  /* Lines: EXECUTOR HOST RUNNING, the last the number of its tasks that run. */
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

  /* Put a whole plan in place in one step, if it was made for the present epoch. Lines, the weakest block first:
     host|name KEY END mark|evacuate REASON. Answers "stale" with nothing done, or "done" and a line HOST COUNT for each
     host with tasks told to stop. */
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
      look(System.currentTimeMillis());
      tasks = tasksToStop();
    }
    if (freed) sc.schedulerBackend().reviveOffers();
    return "done\n" + stop(tasks);
  }

  /* ---- for Spark, which holds the monitor ---- */

  public void applyExcludeOnFailureTimeout() {
    if (own != null) own.applyExcludeOnFailureTimeout();
    try {
      observe();
    } catch (Throwable t) {
      /* Thrown from here it would stop the scheduler: rather no block than no job. The agent hears of it. */
      failure = t.toString();
      giveUp();
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

  /* Read without the monitor, by what asks for executors and what registers them. An executor on a listed host is
     turned away as it registers, and a Master starts the next one there at once, for ever. So only YARN is told, which
     then looks elsewhere. */
  public scala.collection.immutable.Set excludedNodeList() {
    scala.collection.immutable.Set hosts = own == null ? super.excludedNodeList() : own.excludedNodeList();
    String[] more = listed;
    for (int i = 0; i < more.length; i++) hosts = (scala.collection.immutable.Set) hosts.$plus(more[i]);
    return hosts;
  }

  /* ---- below here the monitor is held ---- */

  private void put(HealthTracker tracker) throws Exception {
    Field f = TaskSchedulerImpl.class.getDeclaredField("healthTrackerOpt");
    f.setAccessible(true);
    f.set(scheduler, scala.Option.apply((Object) tracker));
  }

  private void giveUp() {
    installed = false;
    blocked = new LinkedHashMap();
    names = new HashMap();
    listed = new String[0];
  }

  /* Cheap, as Spark calls it with each round of offers: a look only if something moved, or once a second. */
  private void observe() {
    if (!installed) return;
    long now = System.currentTimeMillis();
    String moved = scheduler.executorIdToHost().size() + " " + removals;
    if (own != null)
      moved += " " + own.nodeIdToExcludedExpiryTime().size() + " " + own.executorIdToExcludedStatus().size() + " " + own.nextExpiryTime();
    if (now >= nextEnd || now >= nextLook || now < nextLook - LOOK_MILLIS || !moved.equals(seen)) {
      if (!moved.equals(seen)) moves++;
      seen = moved;
      look(now);
    }
    if (!quiet && !blocked.isEmpty()) openForStuckTasks();
  }

  private void look(long now) {
    nextLook = now + LOOK_MILLIS;
    endBlocks(now);
    HashMap before = live;
    live = liveHosts();
    if (!live.equals(before)) epoch++;
    for (Iterator it = live.keySet().iterator(); it.hasNext();) {
      String host = (String) it.next();
      if (!before.containsKey(host) && !blocked.containsKey(host)) blockNew(host, now);
      /* Its own tracker has just told that the host is free; it is not. */
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

  /* A host that no plan knew: it is blocked from its first offer on if its name says so; the next plan sees to it. */
  private void blockNew(String host, long now) {
    String name = host.toLowerCase(Locale.ROOT);
    int dot = name.indexOf('.');
    Block block = (Block) names.get(name);
    /* A short name is kept with a dot behind it: it stands for each full name that it begins. */
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

  /* Where tasks of the application have failed, Spark itself keeps them from hosts, each task from its own; a task
     that has none left costs the whole job. This is Spark's own question before it gives up. */
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

  /* Whether any host became free. */
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

  /* For Spark's UI and event log; what its own tracker excludes as well it has told, and will tell. */
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

  /* Host to the ids of its tasks, for hosts to evacuate: those not yet told to stop. */
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

  /* Without the monitor. A task told to stop is not counted as failed; it starts again where Spark may offer it. */
  private String stop(HashMap tasks) {
    StringBuilder told = new StringBuilder();
    for (Iterator it = tasks.entrySet().iterator(); it.hasNext();) {
      Map.Entry e = (Map.Entry) it.next();
      ArrayList ids = (ArrayList) e.getValue();
      for (int i = 0; i < ids.size(); i++) {
        Object[] task = (Object[]) ids.get(i);
        sc.killTaskAttempt(((Long) task[0]).longValue(), true, (String) task[1]);
      }
      told.append(e.getKey()).append('\t').append(ids.size()).append('\n');
    }
    return told.toString();
  }
}
