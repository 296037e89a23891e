package blocklist.spark;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.UnaryOperator;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Tells hosts that are faulty from jobs that are: what fails on a host must succeed on others. Pure; times are passed in, in
 * milliseconds by a clock that never goes back.
 *
 * <p>Tasks: of the last RECENT ends of each stage on the host, MIN_FAILURES failed whose partitions were then started on
 * another host and succeeded; one of them was started after another had succeeded, so what hit all of them once does not
 * count; and the first failed LASTING ago. They are at least half of what is known about the host, in one stage or in all, and
 * ten times the share of failures on all others. Of a host that fails all, the ends that are kept are spread over the window:
 * it may fail RECENT others before the first has succeeded elsewhere. A partition that has succeeded nowhere says nothing: the
 * job or its data may be the cause.
 *
 * <p>Executors: MIN_LOSSES of them exited with an error, each started after the one before it was lost: what ends together
 * may have one cause, such as a machine that leaves. All tasks that ran on them have succeeded on other hosts since: one
 * of them may have ended the executor, and would do so anywhere. They are ten times as many as on another host, and at
 * least as many as there are other hosts with one.
 *
 * <p>Fetches: MIN_READERS other hosts could not read from the host, at least as many as could in the same attempts of
 * stages, and again in an attempt after the first failure; its executor is still there SETTLE later. At most a tenth of
 * the other hosts may have the same, and a host that cannot read from more than that does not count as a reader.
 *
 * <p>Memory: MAX_ENDS times RECENT ends of tasks (or those of one stage, if that has more hosts), MAX_STAGES times MAX_FAILED
 * failed partitions, MAX_EVENTS losses, MAX_FETCHES fetches, and the live executors.
 */
final class FailureJudge {
  static final long WINDOW = 60000;
  /** Ends of a stage count for longer if its tasks take long: so many times the longest, at most MAX_WINDOW. */
  static final int WINDOW_TASKS = 4;
  static final long MAX_WINDOW = 3600000;
  /** An executor that is being ended fails tasks before Spark knows that it has left. */
  static final long LASTING = 5000;
  /** Milliseconds in which losses of executors count: a start takes several seconds. */
  static final long LOSS_WINDOW = 300000;
  /** Spark takes some seconds to find out that a machine has left, and others fail to read from it before. */
  static final long SETTLE = 10000;
  /** Failures of an executor so long before it leaves may come from its leaving. */
  static final long LEAVING = 15000;
  static final int MIN_FAILURES = 3;
  static final int MIN_LOSSES = 2;
  static final int MIN_READERS = 2;
  static final int MIN_OTHERS = 2;
  static final int RECENT = 16;
  static final int MAX_STAGES = 100;
  static final int MAX_ENDS = 20000;
  static final int MAX_FAILED = 200;
  static final int MAX_EVENTS = 1000;
  /** Each of a thousand hosts may fail to read from each of a dozen executors. */
  static final int MAX_FETCHES = 20000;
  static final int MAX_EXECUTORS = 50000;
  /** Lost tasks of one executor that are remembered. */
  static final int MAX_LOST = 64;
  /** Spark's events about the tasks of a lost executor come just before or after that of the executor. */
  static final long LOST_TASKS = 1000;
  private static final int MAX_ERROR = 80;
  private static final int SUCCEEDED = -1;
  private static final int IGNORED = -2;
  private static final Pattern EXIT = Pattern.compile("(?i)\\bexit(?:ed)?(?: with)?(?: exit)? (?:code|status):? *(-?\\d{1,9})\\b");

  /** The last ends of tasks of one stage on one host. */
  private static final class Ends {
    final long[] at = new long[RECENT];
    /** The partition that failed, SUCCEEDED or IGNORED. */
    final int[] what = new int[RECENT];
    /** The executor of what failed, null if it was not known. */
    final LiveExecutor[] executors = new LiveExecutor[RECENT];
    /** When it began and ended, by the driver's clock. */
    final long[] launched = new long[RECENT];
    final long[] ended = new long[RECENT];
    int size = 0;
    int next = 0;
    String error = "";

    void add(int partition, LiveExecutor executor, long launched, long ended, long now) {
      at[next] = now;
      executors[next] = executor;
      this.launched[next] = launched;
      this.ended[next] = ended;
      what[next] = partition;
      next = (next + 1) % RECENT;
      size = Math.min(size + 1, RECENT);
    }

    /** Makes place for a failure, if the host fails all: forgets the latest, not the first. Returns its partition, or IGNORED. */
    int thinOut(long window, long now) {
      int latest = (next + RECENT - 1) % RECENT;
      int before = (next + RECENT - 2) % RECENT;
      if (size < RECENT || now - at[next] >= window || at[latest] - at[before] >= window / RECENT) return IGNORED;
      for (int each : what) if (each < 0) return IGNORED;
      next = latest;
      for (int i = 0; i < RECENT; i++) if (i != latest && what[i] == what[latest]) return IGNORED;
      return what[latest];
    }

    /** Whether a task succeeded that began from {@code from} on and before {@code to}, by the driver's clock. */
    boolean succeededSince(long from, long to) {
      for (int i = 0; i < size; i++) if (what[i] == SUCCEEDED && launched[i] >= from && launched[i] < to) return true;
      return false;
    }

    void ignoreFailures(LiveExecutor executor, long since) {
      for (int i = 0; i < size; i++) if (what[i] >= 0 && at[i] >= since && executor == executors[i]) what[i] = IGNORED;
    }
  }

  /** The first success of a partition after its last failure. */
  private static final class Success {
    final String host;
    final long launched;
    final long ended;
    final long at;

    Success(String host, long launched, long ended, long at) {
      this.host = host;
      this.launched = launched;
      this.ended = ended;
      this.at = at;
    }
  }

  private static final class Stage {
    final Map<String, Ends> hosts = new HashMap<>();
    /** Partitions that have failed; null until one has succeeded. */
    final Map<Integer, Success> failed = new LinkedHashMap<>();
    /** No failure is so early; its distance from any time must not overflow. */
    long lastFailure = Long.MIN_VALUE / 2;
    long lastEnd;
    /** Milliseconds that its longest task took. */
    long longest = 0;

    /** Milliseconds in which its ends count. */
    long window() {
      return Math.max(WINDOW, Math.min(MAX_WINDOW, WINDOW_TASKS * longest));
    }
  }

  /** What is known about a node. */
  private static final class Tally {
    int succeeded = 0;
    int failed = 0;
    /** Of those that failed: the partition then succeeded on another node. */
    int proven = 0;
    long latest = Long.MIN_VALUE / 2;
    /** When the first of those that failed did. */
    long first = Long.MAX_VALUE;
    /** When the first proof ended, and the last failure that is proven began. */
    long firstProof = Long.MAX_VALUE;
    long lastLaunched = Long.MIN_VALUE;
    String error = "";
    int othersFailed = 0;
    int othersSucceeded = 0;
    final Set<String> others = new HashSet<>();

    boolean isBlamed(long now) {
      if (proven < MIN_FAILURES || others.size() < MIN_OTHERS || now - latest >= EvidenceCollector.FINDING_TTL) return false;
      // All may have failed for one reason that has passed, such as an outage of a server that this host noticed first.
      if (lastLaunched < firstProof || now - first < LASTING) return false;
      int othersEnded = othersFailed + othersSucceeded;
      return proven >= succeeded && othersFailed * 10 <= othersEnded && (long) proven * othersEnded >= 10L * othersFailed * (proven + succeeded);
    }

    String reason() {
      return "In stages with failures, " + proven + " of " + (proven + succeeded) + " recent task attempts failed with " + error
          + " and then succeeded on other hosts.";
    }
  }

  private static final class LiveExecutor {
    final String host;
    final long since;
    /** The stage and partition of each task that was lost with it. */
    final List<int[]> lost = new ArrayList<>();

    LiveExecutor(String host, long since) {
      this.host = host;
      this.since = since;
    }
  }

  private static final class Loss {
    final String id;
    final LiveExecutor executor;
    final int code;
    final long at;
    /** When its tasks had succeeded on other hosts; -1 if they have not yet. */
    long proven = -1;

    Loss(String id, LiveExecutor executor, int code, long at) {
      this.id = id;
      this.executor = executor;
      this.code = code;
      this.at = at;
    }
  }

  /** The losses of a node, each of an executor that started after the one before was lost. */
  private static final class Losses {
    int count = 0;
    long first = 0;
    long last = 0;
    long latest = Long.MIN_VALUE / 2;
    int code = 0;

    void add(Loss loss) {
      if (count > 0 && loss.executor.since < last) return;
      if (count++ == 0) first = loss.at;
      last = loss.at;
      latest = Math.max(latest, loss.proven);
      code = loss.code;
    }
  }

  /** That tasks of a stage on one host could not read from an executor, when first and last. */
  private static final class Fetch {
    final int stage;
    final String executor;
    final String server;
    final String reader;
    final long first;
    long last;
    /** When the first of these tasks ended, and the first and the last of them began, by the driver's clock. */
    long firstEnded = Long.MAX_VALUE;
    long firstLaunched = Long.MAX_VALUE;
    long lastLaunched = Long.MIN_VALUE;

    Fetch(int stage, String executor, String server, String reader, long now) {
      this.stage = stage;
      this.executor = executor;
      this.server = server;
      this.reader = reader;
      first = now;
    }

    void add(long launched, long ended, long now) {
      last = now;
      firstEnded = Math.min(firstEnded, ended);
      firstLaunched = Math.min(firstLaunched, launched);
      lastLaunched = Math.max(lastLaunched, launched);
    }
  }

  /** The reads from a node that failed. */
  private static final class Charges {
    final Set<String> readers = new HashSet<>();
    /** Stage to its first failures: once one has ended, no further task of the same attempt begins. */
    final Map<Integer, Fetch> stages = new HashMap<>();
    long latest = Long.MIN_VALUE / 2;
    long firstEnded = Long.MAX_VALUE;
    long lastLaunched = Long.MIN_VALUE;

    void add(Fetch fetch, String reader) {
      readers.add(reader);
      stages.merge(fetch.stage, fetch, (one, other) -> one.firstEnded <= other.firstEnded ? one : other);
      latest = Math.max(latest, fetch.last);
      firstEnded = Math.min(firstEnded, fetch.firstEnded);
      lastLaunched = Math.max(lastLaunched, fetch.lastLaunched);
    }
  }

  private final boolean hostsServe;
  /** The one that was used longest ago comes first. */
  private final Map<Integer, Stage> stages = new LinkedHashMap<>();
  private int ends = 0;
  private final Map<String, LiveExecutor> live = new LinkedHashMap<>();
  private final Deque<Loss> losses = new ArrayDeque<>();
  private final Map<String, Fetch> fetches = new LinkedHashMap<>();

  /** {@code hostsServe}: shuffle data is read from a service of the host, not from an executor. */
  FailureJudge(boolean hostsServe) {
    this.hostsServe = hostsServe;
  }

  /** {@code launched}, {@code ended}: by the driver's clock, which may be set; compared only with each other. */
  void taskSucceeded(int stageId, int partition, String host, long launched, long ended, long now) {
    Stage stage = stage(stageId, now);
    ends(stage, host).add(SUCCEEDED, null, launched, ended, now);
    stage.longest = Math.max(stage.longest, Math.min(ended - launched, MAX_WINDOW));
    if (stage.failed.containsKey(partition)) stage.failed.putIfAbsent(partition, new Success(host, launched, ended, now));
  }

  /** A task has failed for a reason that may be its host's fault: {@code error}, such as the name of an exception. */
  void taskFailed(int stageId, int partition, String executor, String host, String error, long launched, long ended, long now) {
    Stage stage = stage(stageId, now);
    Ends its = ends(stage, host);
    // What is not kept awaits no success: of so many, it would push out what does.
    stage.failed.remove(its.thinOut(stage.window(), now));
    its.add(Math.max(0, partition), live.get(executor), launched, ended, now);
    stage.longest = Math.max(stage.longest, Math.min(ended - launched, MAX_WINDOW));
    its.error = error.substring(0, Math.min(MAX_ERROR, error.length())).replaceAll("\\p{Cc}", " ");
    awaitSuccess(stage, partition);
    stage.lastFailure = now;
  }

  /** A task was lost with its executor. */
  void taskLost(int stageId, int partition, String executor, long now) {
    LiveExecutor its = live.get(executor);
    if (its == null) its = losses.stream().filter(loss -> loss.id.equals(executor)).map(loss -> loss.executor).findFirst().orElse(null);
    if (its == null || its.lost.size() >= MAX_LOST) return;
    its.lost.add(new int[] {stageId, partition});
    awaitSuccess(stage(stageId, now), partition);
  }

  /** A success before now, such as before the stage was retried, proves nothing. */
  private static void awaitSuccess(Stage stage, int partition) {
    stage.failed.remove(partition);
    stage.failed.put(partition, null);
    if (stage.failed.size() > MAX_FAILED) removeFirst(stage.failed.keySet());
  }

  /** A task on the host {@code reader} could not read what this executor has written on the host {@code server}. */
  void fetchFailed(int stageId, String executor, String server, String reader, long launched, long ended, long now) {
    // It has left: Spark retries for some 15 s before a task fails.
    if (!hostsServe && !live.containsKey(executor)) return;
    String key = stageId + " " + executor + " " + server + " " + reader;
    fetches.computeIfAbsent(key, each -> new Fetch(stageId, executor, server, reader, now)).add(launched, ended, now);
    if (fetches.size() > MAX_FETCHES) removeFirst(fetches.keySet());
  }

  void executorAdded(String executor, String host, long now) {
    live.putIfAbsent(executor, new LiveExecutor(host, now));
    if (live.size() > MAX_EXECUTORS) removeFirst(live.keySet());
  }

  /** {@code reason} is Spark's. */
  void executorRemoved(String executor, String reason, long now) {
    LiveExecutor removed = live.remove(executor);
    if (removed == null) return;
    int code = exitCode(reason);
    if (!isFault(code)) {
      ignoreFailures(removed, now - LEAVING);
      return;
    }
    losses.add(new Loss(executor, removed, code, now));
    if (losses.size() > MAX_EVENTS) losses.remove();
  }

  /** The exit code that Spark's reason of a removal names; 0 if there is none. */
  static int exitCode(String reason) {
    Matcher matcher = EXIT.matcher(reason);
    return matcher.find() ? Integer.parseInt(matcher.group(1)) : 0;
  }

  /**
   * Not 52 (out of memory), 57 (a task of the job did not end), 137 and 143 (SIGKILL and SIGTERM: somebody ended it);
   * negative ones are decisions of YARN.
   */
  private static boolean isFault(int code) {
    return code > 0 && code != 52 && code != 57 && code != 137 && code != 143;
  }

  /** Not those of the host's other executors: one that was idle may end while they fail. */
  private void ignoreFailures(LiveExecutor executor, long since) {
    for (Stage stage : stages.values()) {
      Ends its = stage.hosts.get(executor.host);
      if (its != null) its.ignoreFailures(executor, since);
    }
  }

  /**
   * The nodes that are faulty at {@code now}, to a sentence. {@code nodeOf} returns the node of a host, null if it was never
   * known: then the host counts nowhere.
   */
  Map<String, String> findings(UnaryOperator<String> nodeOf, long now) {
    expire(now);
    Map<String, String> found = new TreeMap<>();
    addFetches(found, nodeOf, now);
    addLosses(found, nodeOf, now);
    addTasks(found, nodeOf, now);
    return found;
  }

  private void expire(long now) {
    losses.removeIf(loss -> now - loss.at >= LOSS_WINDOW);
    fetches.values().removeIf(fetch -> now - fetch.last >= LOSS_WINDOW || !(hostsServe || live.containsKey(fetch.executor)));
    // Not after its window: how long its tasks take is known once one has ended.
    while (!stages.isEmpty() && now - stages.values().iterator().next().lastEnd >= MAX_WINDOW) removeOldestStage();
  }

  private void addTasks(Map<String, String> found, UnaryOperator<String> nodeOf, long now) {
    Map<String, Tally> tallies = new HashMap<>();
    for (Stage stage : stages.values()) {
      if (now - stage.lastFailure < stage.window()) addStage(found, tallies, stage, nodeOf, now);
    }
    tallies.forEach((node, tally) -> {
      if (!tally.isBlamed(now)) return;
      addOtherSuccesses(tally, node, nodeOf);
      if (tally.isBlamed(now)) found.putIfAbsent(node, tally.reason());
    });
  }

  /** Those in stages of which nothing failed on the node, since its first failure: of many small stages, few have one. */
  private void addOtherSuccesses(Tally tally, String node, UnaryOperator<String> nodeOf) {
    for (Stage stage : stages.values()) {
      int succeeded = 0;
      boolean failed = false;
      for (Map.Entry<String, Ends> host : stage.hosts.entrySet()) {
        if (!node.equals(nodeOf.apply(host.getKey()))) continue;
        Ends its = host.getValue();
        for (int i = 0; i < its.size; i++) {
          failed |= its.what[i] >= 0 && its.at[i] >= tally.first;
          if (its.what[i] == SUCCEEDED && its.at[i] >= tally.first) succeeded++;
        }
      }
      if (!failed) tally.succeeded += succeeded;
    }
  }

  /** A host may fail one stage alone: that one needs what the host lacks. */
  private static void addStage(Map<String, String> found, Map<String, Tally> tallies, Stage stage, UnaryOperator<String> nodeOf, long now) {
    Map<String, Tally> nodes = new HashMap<>();
    stage.hosts.forEach((host, its) -> {
      String node = nodeOf.apply(host);
      if (node != null) count(nodes.computeIfAbsent(node, each -> new Tally()), node, its, stage, nodeOf, now);
    });
    Tally all = new Tally();
    nodes.forEach((node, its) -> {
      all.failed += its.failed;
      all.succeeded += its.succeeded;
      // One more than needed: the node itself may be one of them.
      if (its.succeeded > 0 && all.others.size() <= MIN_OTHERS) all.others.add(node);
    });
    nodes.forEach((node, its) -> {
      if (its.failed == 0) return;
      Tally alone = new Tally();
      join(alone, node, its, all);
      if (alone.isBlamed(now)) found.put(node, alone.reason());
      join(tallies.computeIfAbsent(node, each -> new Tally()), node, its, all);
    });
  }

  private static void count(Tally tally, String node, Ends its, Stage stage, UnaryOperator<String> nodeOf, long now) {
    for (int i = 0; i < its.size; i++) {
      if (now - its.at[i] >= stage.window() || its.what[i] == IGNORED) continue;
      if (its.what[i] == SUCCEEDED) {
        tally.succeeded++;
        continue;
      }
      tally.failed++;
      tally.error = its.error;
      tally.first = Math.min(tally.first, its.at[i]);
      tally.latest = Math.max(tally.latest, its.at[i]);
      Success success = stage.failed.get(its.what[i]);
      String elsewhere = success == null ? null : nodeOf.apply(success.host);
      if (elsewhere == null || elsewhere.equals(node)) continue;
      // Two attempts at a time, by speculation, may get in each other's way: one creates the file of the other.
      if (success.launched < its.ended[i]) continue;
      tally.proven++;
      tally.firstProof = Math.min(tally.firstProof, success.ended);
      tally.lastLaunched = Math.max(tally.lastLaunched, its.launched[i]);
      tally.latest = Math.max(tally.latest, success.at);
    }
  }

  private static void join(Tally tally, String node, Tally its, Tally all) {
    tally.succeeded += its.succeeded;
    tally.failed += its.failed;
    tally.proven += its.proven;
    tally.error = its.error;
    tally.first = Math.min(tally.first, its.first);
    tally.latest = Math.max(tally.latest, its.latest);
    tally.firstProof = Math.min(tally.firstProof, its.firstProof);
    tally.lastLaunched = Math.max(tally.lastLaunched, its.lastLaunched);
    tally.othersFailed += all.failed - its.failed;
    tally.othersSucceeded += all.succeeded - its.succeeded;
    for (String other : all.others) if (!other.equals(node)) tally.others.add(other);
  }

  private void addLosses(Map<String, String> found, UnaryOperator<String> nodeOf, long now) {
    Map<String, Losses> byNode = new HashMap<>();
    Map<String, Losses> proven = new HashMap<>();
    for (Loss loss : losses) {
      String node = nodeOf.apply(loss.executor.host);
      if (node == null) continue;
      if (loss.proven < 0 && now - loss.at >= LOST_TASKS && succeededElsewhere(loss, node, nodeOf)) loss.proven = now;
      byNode.computeIfAbsent(node, each -> new Losses()).add(loss);
      if (loss.proven >= 0) proven.computeIfAbsent(node, each -> new Losses()).add(loss);
    }
    int all = byNode.values().stream().mapToInt(its -> its.count).sum();
    proven.forEach((node, its) -> {
      if (its.count < MIN_LOSSES || now - its.latest >= EvidenceCollector.FINDING_TTL) return;
      Set<String> others = liveNodes(nodeOf, its.first);
      others.remove(node);
      int alike = byNode.size() - 1;
      others.removeAll(byNode.keySet());
      // Of many hosts some happen to have two, if a job ends executors wherever it runs.
      boolean isMost = its.count >= alike && its.count * (others.size() + alike) >= 10 * (all - byNode.get(node).count);
      if (others.size() >= MIN_OTHERS && isMost)
        found.put(node, its.count + " executors exited one after the other, the last with code " + its.code + "; those on other hosts live on.");
    });
  }

  private boolean succeededElsewhere(Loss loss, String node, UnaryOperator<String> nodeOf) {
    for (int[] task : loss.executor.lost) {
      Stage stage = stages.get(task[0]);
      Success success = stage == null ? null : stage.failed.get(task[1]);
      String elsewhere = success == null ? null : nodeOf.apply(success.host);
      if (elsewhere == null || elsewhere.equals(node)) return false;
    }
    return true;
  }

  private void addFetches(Map<String, String> found, UnaryOperator<String> nodeOf, long now) {
    if (fetches.isEmpty()) return;
    Set<String> present = liveNodes(nodeOf, Long.MAX_VALUE);
    Set<String> charged = new HashSet<>();
    Map<String, Charges> settled = new HashMap<>();
    Set<String> unable = unableReaders(nodeOf, present.size());
    for (Fetch fetch : fetches.values()) {
      String node = nodeOf.apply(fetch.server);
      String reader = nodeOf.apply(fetch.reader);
      if (node == null || reader == null || node.equals(reader) || !present.contains(node) || unable.contains(reader)) continue;
      charged.add(node);
      if (now - fetch.first >= SETTLE) settled.computeIfAbsent(node, each -> new Charges()).add(fetch, reader);
    }
    settled.forEach((node, its) -> {
      int alike = charged.size() - 1;
      int others = present.size() - charged.size();
      if (its.readers.size() < MIN_READERS || now - its.latest >= SETTLE + EvidenceCollector.FINDING_TTL) return;
      // A service that is started again cannot be read for one attempt.
      if (its.lastLaunched < its.firstEnded || ableReaders(node, its, nodeOf) > its.readers.size()) return;
      if (others >= MIN_OTHERS && alike * 10 <= others + alike)
        found.put(node, "Tasks on " + its.readers.size() + " other hosts could not read shuffle data from the host.");
    });
  }

  /** The nodes that cannot read from more than a tenth of the others, and more than one: their own network may be bad. */
  private Set<String> unableReaders(UnaryOperator<String> nodeOf, int present) {
    Map<String, Set<String>> servers = new HashMap<>();
    for (Fetch fetch : fetches.values()) {
      String node = nodeOf.apply(fetch.server);
      String reader = nodeOf.apply(fetch.reader);
      if (node != null && reader != null && !node.equals(reader)) servers.computeIfAbsent(reader, each -> new HashSet<>()).add(node);
    }
    servers.values().removeIf(its -> its.size() <= 1 || its.size() * 10 <= present);
    return servers.keySet();
  }

  /** Number of other nodes on which a task succeeded that began in the same attempt of a stage as those that failed. */
  private int ableReaders(String server, Charges charges, UnaryOperator<String> nodeOf) {
    Set<String> able = new HashSet<>();
    charges.stages.forEach((id, first) -> {
      Stage stage = stages.get(id);
      if (stage == null) return;
      stage.hosts.forEach((host, its) -> {
        String node = nodeOf.apply(host);
        if (node != null && !node.equals(server) && its.succeededSince(first.firstLaunched, first.firstEnded)) able.add(node);
      });
    });
    able.removeAll(charges.readers);
    return able.size();
  }

  /** The nodes with an executor that has been there since before {@code since}. */
  private Set<String> liveNodes(UnaryOperator<String> nodeOf, long since) {
    Set<String> nodes = new HashSet<>();
    for (LiveExecutor executor : live.values()) if (executor.since < since) nodes.add(nodeOf.apply(executor.host));
    nodes.removeIf(Objects::isNull);
    return nodes;
  }

  private Stage stage(int id, long now) {
    Stage before = stages.remove(id);
    Stage stage = before == null ? new Stage() : before;
    stages.put(id, stage);
    stage.lastEnd = now;
    while (stages.size() > MAX_STAGES || (ends > MAX_ENDS && stages.size() > 1)) removeOldestStage();
    return stage;
  }

  private void removeOldestStage() {
    Iterator<Stage> oldest = stages.values().iterator();
    ends -= oldest.next().hosts.size();
    oldest.remove();
  }

  private Ends ends(Stage stage, String host) {
    Ends its = stage.hosts.get(host);
    if (its != null) return its;
    ends++;
    stage.hosts.put(host, its = new Ends());
    return its;
  }

  private static void removeFirst(Set<?> keys) {
    Iterator<?> first = keys.iterator();
    first.next();
    first.remove();
  }
}
