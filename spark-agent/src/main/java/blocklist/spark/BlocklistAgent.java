package blocklist.spark;

import blocklist.spark.EvidenceCollector.Observation;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Timer;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerApplicationEnd;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The agent of one application. There is one per application, however often and by whatever it is started: each start
 * counts, and the agent ends when as many have ended it, or with its application.
 *
 * <p>THREADING: one daemon thread each waits for tables, sends reports and checks the scheduler; lookups of names have
 * threads of their own while there are any. All methods may be called from any thread.
 */
public final class BlocklistAgent implements ReportSource {
  private static final Logger LOG = LoggerFactory.getLogger("blocklist");
  private static final List<String> SCHEDULERS = Arrays.asList(
    "org.apache.spark.scheduler.TaskSchedulerImpl", "org.apache.spark.scheduler.cluster.YarnScheduler",
    "org.apache.spark.scheduler.cluster.YarnClusterScheduler");
  private static final long CHECK_MILLIS = 1000;
  private static final long MODE_WAIT_MILLIS = 1000;
  private static BlocklistAgent running = null;

  private final SparkContext sc;
  private final Settings settings;
  private final Timer timer = new Timer("blocklist-timeouts", true);
  private final ServiceClock clock = new ServiceClock();
  private final HostDirectory directory;
  private final SchedulerControl control;
  private final String unsupported;
  private final PodPlacementLoop placement;
  private final TableLoop tables;
  private final ReportLoop reports;
  /** Recovers the tracker, evacuates tasks that have started since, and ends the agent of a stopped application. */
  private final Loop checks = new Loop("blocklist-check", "check the scheduler") {
    long runOnce() {
      if (sc.isStopped()) BlocklistAgent.this.close();
      else check();
      return CHECK_MILLIS;
    }
  };
  private final CountDownLatch firstTable = new CountDownLatch(1);
  private final CountDownLatch modeKnown = new CountDownLatch(1);
  /** Guards the mode, and that no table of before is in force after it has changed. */
  private final Object modes = new Object();
  private Mode own = Mode.APPLY;
  private Mode wanted = Mode.APPLY;
  private volatile Mode mode = Mode.APPLY;
  private final EvidenceCollector evidence = new EvidenceCollector();
  private SparkObserver observer = null;
  private FailureListener failures = null;
  private final SparkListener ends = new GuardedListener("The agent did not end with the application.") {
    public void onApplicationEnd(SparkListenerApplicationEnd event) {
      guarded(BlocklistAgent.this::close);
    }
  };
  private int starts = 0;
  private int keepHosts = 1;
  private volatile int minNodes = 0;
  private volatile boolean reportNodes = false;
  private volatile Table table = Table.EMPTY;
  private volatile String history = "";
  private volatile boolean closed = false;

  /** Start the agent, or join the running one; returns once the first table is in force, at the latest after {@code settings.startWait}. */
  static BlocklistAgent start(SparkContext sc, Settings settings) throws Exception {
    BlocklistAgent agent = join(sc, settings);
    agent.firstTable.await(settings.startWait, TimeUnit.MILLISECONDS);
    return agent;
  }

  private static BlocklistAgent join(SparkContext sc, Settings settings) throws Exception {
    synchronized (BlocklistAgent.class) {
      boolean isNew = running == null || running.closed || running.sc != sc;
      BlocklistAgent agent = isNew ? new BlocklistAgent(sc, settings) : running;
      agent.add(settings);
      if (isNew) agent.begin();
      else if (!agent.settings.url.equals(settings.url))
        LOG.warn("The agent runs already, with the service {}; {} is not used.", agent.settings.url, settings.url);
      agent.starts++;
      running = agent;
      return agent;
    }
  }

  /** The settings of all starts together: the stricter value counts. */
  private void add(Settings other) {
    keepHosts = Math.max(keepHosts, other.keepHosts);
    minNodes = Math.max(minNodes, other.minNodes);
    reportNodes |= other.reportNodes;
    synchronized (modes) {
      own = own.weaker(other.mode);
      takeMode();
    }
    if (other.reportEvidence && observer == null) observe();
    if (control != null) control.require(keepHosts, minNodes);
    reports.wake();
  }

  private void observe() {
    try {
      SparkObserver created = new SparkObserver("true".equals(sc.conf().get("spark.speculation", "false")));
      sc.addSparkListener(created);
      observer = created;
      failures = FailureListener.start(sc);
    } catch (Throwable t) {
      // Applying the list matters more: it must continue without evidence.
      LOG.warn("Failures and Spark's exclusions cannot be observed; no evidence is reported.", t);
    }
  }

  private BlocklistAgent(SparkContext sc, Settings settings) throws Exception {
    this.sc = sc;
    this.settings = settings;
    KubernetesBackend kubernetes = null;
    String unknown = unsupported(sc);
    try {
      if (unknown == null && KubernetesBackend.isUsedBy(sc)) kubernetes = new KubernetesBackend(sc);
    } catch (Throwable t) {
      unknown = "The agent does not know how Spark " + sc.version() + " keeps its pods: " + t + ".";
    }
    unsupported = unknown;
    directory = kubernetes == null ? new HostResolver(this::onNamesResolved) : new PodDirectory(kubernetes, (TaskSchedulerImpl) sc.taskScheduler());
    control = unsupported == null ? new SchedulerControl(sc, directory, clock, this, this::report) : null;
    placement = kubernetes == null || !settings.podAffinity ? null : new PodPlacementLoop(sc, control, kubernetes);
    if (placement != null) control.setPlacement(placement);
    tables = new TableLoop(newClient(), this);
    reports = new ReportLoop(newClient(), this, sc.applicationId(), session(sc), this::software);
  }

  private void begin() {
    if (unsupported != null) LOG.warn("{} No host is blocked.", unsupported);
    check();
    sc.addSparkListener(ends);
    tables.start();
    reports.start();
    if (placement != null) placement.start();
    checks.start();
  }

  /** Why the agent cannot apply blocks in this application; null if it can. */
  static String unsupported(SparkContext sc) {
    String scheduler = sc.taskScheduler().getClass().getName();
    if (!SCHEDULERS.contains(scheduler)) return "The agent does not know the task scheduler " + scheduler + ".";
    return sc.version().startsWith("3.5.") || sc.version().startsWith("4.") ? null : "The agent does not know Spark " + sc.version() + ".";
  }

  private static String session(SparkContext sc) {
    String attempt = Scala.orNull(sc.applicationAttemptId());
    return (attempt == null ? "0" : attempt) + "-" + System.currentTimeMillis();
  }

  /** What registrations say of this agent: names of fields to JSON. */
  private Map<String, String> software() {
    Map<String, String> fields = new TreeMap<>();
    String version = BlocklistAgent.class.getPackage().getImplementationVersion();
    fields.put("product", Json.text("blocklist-spark"));
    if (version != null) fields.put("version", Json.text(version));
    String language = scala.util.Properties.versionNumberString();
    String platform = "Spark " + sc.version() + ", Scala " + language + ", Java " + System.getProperty("java.version");
    if (control != null && control.waitsForClosedHosts()) platform += "; tasks wait for blocked hosts (spark.locality.wait)";
    fields.put("platform", Json.text(platform));
    return fields;
  }

  /** Send a report soon. */
  private void report() {
    reports.wake();
  }

  private ServiceClient newClient() throws IOException {
    String agent = "blocklist-spark (Spark " + sc.version() + "; " + sc.taskScheduler().getClass().getName() + "; Java " + System.getProperty("java.version") + ")";
    return new ServiceClient(settings, agent, timer);
  }

  public int minNodes() {
    return minNodes;
  }

  void check() {
    if (control != null) control.check();
  }

  void onNamesResolved() {
    if (control != null) control.onNamesResolved();
    reports.wake();
    countDownIfInForce();
  }

  /** The service has answered a request for the table. */
  void onDate(long date) {
    clock.onDate(date);
  }

  /** Put the table in force. False if the agent is off: then there is none. */
  boolean onTable(Table next, String itsHistory) {
    synchronized (modes) {
      if (mode == Mode.OFF) return false;
      // In this order, see acknowledgement.
      table = next;
      history = itsHistory;
      if (control != null) control.apply(next);
      else firstTable.countDown();
    }
    if (placement != null) placement.wake();
    countDownIfInForce();
    reports.wake();
    return true;
  }

  /** Whether to ask for the list. Waits at first for what the service says of the mode: an agent that is to observe must never have closed a host. */
  boolean needsTable() throws InterruptedException {
    modeKnown.await(MODE_WAIT_MILLIS, TimeUnit.MILLISECONDS);
    return mode != Mode.OFF;
  }

  public Mode mode() {
    return mode;
  }

  public void onMode(Mode next) {
    synchronized (modes) {
      if (next != null) wanted = next;
      takeMode();
    }
    modeKnown.countDown();
  }

  /** Act as this application's settings or the service say, whichever does less. */
  private void takeMode() {
    Mode next = own.weaker(wanted);
    if (next == mode) return;
    LOG.warn("The agent's mode is {} now{}.", next.text(), next == Mode.APPLY ? "" : next == Mode.OBSERVE ? ": it changes nothing" : ": all hosts are free");
    if (next == Mode.OFF) {
      table = Table.EMPTY;
      history = "";
      firstTable.countDown();
    }
    mode = next;
    if (control != null) control.setMode(next);
    if (placement != null) placement.wake();
    if (next == Mode.OFF) tables.forget();
    else tables.wake();
    reports.wake();
  }

  /** The service is not reachable: a start does not wait for it. */
  void onNoTable() {
    firstTable.countDown();
  }

  public void onReported(Snapshot snapshot) {
    if (control != null) control.onReported(snapshot.plan);
  }

  /** No more requests follow. This may be long after {@code close}, if the service is slow. */
  public void onDeregistered() {
    timer.cancel();
  }

  private void countDownIfInForce() {
    if (firstTable.getCount() > 0 && snapshot().revision >= 0) firstTable.countDown();
  }

  public Snapshot snapshot() {
    if (control != null) return control.snapshot();
    return new Snapshot(-1, table, Plan.EMPTY, new TreeMap<>(), new ArrayList<>(), unsupported, mode);
  }

  public Map<String, String> report(Snapshot snapshot) {
    Map<String, String> fields = Report.fields(sc.applicationId(), snapshot);
    if (reportNodes) fields.put("nodes", NodeReport.described(snapshot, directory));
    else if (minNodes > 0) fields.put("nodes", NodeReport.ids(snapshot));
    SparkObserver present = observer;
    if (present == null || snapshot.mode == Mode.OFF) return fields;
    List<Observation> observations = present.drain();
    if (control != null) observations.addAll(control.ownExclusions());
    FailureListener judging = failures;
    Map<String, String> failing = judging == null ? new TreeMap<>() : judging.findings(directory::lastNode);
    fields.put("evidence", Json.object(evidence.update(onNodes(observations), failing, Times.monotonic())));
    return fields;
  }

  /** With nodes in place of hosts. A host whose node was never known means nothing to others. */
  private List<Observation> onNodes(List<Observation> observations) {
    List<Observation> found = new ArrayList<>();
    for (Observation observation : observations) {
      String node = directory.lastNode(observation.host);
      if (node != null) found.add(new Observation(observation.kind, node, observation.stage, observation.task));
    }
    return found;
  }

  boolean isClosed() {
    return closed;
  }

  boolean isConnected() {
    return tables.isConnected();
  }

  boolean isRegistered() {
    return reports.isRegistered();
  }

  String lastError() {
    return tables.lastError();
  }

  /** The part of a heartbeat that acknowledges a revision; empty if there is none. */
  public String acknowledgement(Snapshot snapshot) {
    // Read before the table, which is written before it: so it is the history of this snapshot's table.
    String itsHistory = history;
    long revision = Report.acknowledged(snapshot);
    if (revision < 0 || snapshot.table != table || itsHistory.length() == 0) return "";
    return ",\"ackedRevision\":" + revision + ",\"history\":" + Json.text(itsHistory);
  }

  /** Undo one start; the last one ends the agent. */
  public void release() {
    synchronized (BlocklistAgent.class) {
      starts--;
      if (starts > 0 || !leaveScheduler()) return;
    }
    end();
  }

  /** End the agent: free all hosts, restore Spark's own tracker, and deregister. Returns after a few seconds at the latest. */
  void close() {
    if (leaveScheduler()) end();
  }

  /**
   * False if it was done before. Within the lock of the starts: one that follows must neither join an agent that ends nor
   * find its tracker, whose restoration would remove the next one's.
   */
  private boolean leaveScheduler() {
    synchronized (BlocklistAgent.class) {
      if (closed) return false;
      closed = true;
      if (control != null) control.close();
      return true;
    }
  }

  private void end() {
    checks.close();
    tables.close();
    if (placement != null) placement.close();
    if (observer != null) sc.removeSparkListener(observer);
    if (failures != null) sc.removeSparkListener(failures);
    sc.removeSparkListener(ends);
    directory.close();
    reports.close();
    firstTable.countDown();
  }
}
