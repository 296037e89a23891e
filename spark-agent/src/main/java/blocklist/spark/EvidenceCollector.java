package blocklist.spark;

import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/**
 * Evidence against hosts from what Spark itself does with them, and from what fails on them. Pure; times are passed in, in
 * milliseconds.
 *
 * <p>An exclusion is evidence while it lasts. A few slow tasks are normal: a host is slow if tasks of MIN_STAGES stages,
 * or MIN_TASKS tasks, were speculated within SPECULATION_WINDOW and their copies ended first. Memory: at most MAX_TASKS speculated tasks.
 */
final class EvidenceCollector {
  static final long SPECULATION_WINDOW = 60000;
  /** Milliseconds for which a finding is reported after its latest observation. */
  static final long FINDING_TTL = 10000;
  static final int MIN_STAGES = 2;
  static final int MIN_TASKS = 3;
  /** The service's maximum. A lower one would hide that an application blames all of its hosts. */
  static final int MAX_HOSTS = 10000;
  private static final int MAX_TASKS = 10000;

  /** An exclusion or a speculation by Spark itself. Immutable. */
  static final class Observation {
    /** The host is excluded for the application, or for a stage; or a copy of a task of it ended first elsewhere. */
    static final int APPLICATION = 0;
    static final int STAGE = 1;
    static final int SLOW = 2;

    final int kind;
    final String host;
    /** Id and attempt, such as 3.0; empty for the application. */
    final String stage;
    /** The task's number in the stage; -1 if the host is excluded. */
    final int task;

    Observation(int kind, String host, String stage, int task) {
      this.kind = kind;
      this.host = host;
      this.stage = stage;
      this.task = task;
    }

    public boolean equals(Object other) {
      if (!(other instanceof Observation)) return false;
      Observation its = (Observation) other;
      return kind == its.kind && task == its.task && host.equals(its.host) && stage.equals(its.stage);
    }

    public int hashCode() {
      return (kind * 31 + task) * 31 + host.hashCode() * 31 + stage.hashCode();
    }
  }

  private static final class Exclusion {
    final String reason;
    final long at;

    Exclusion(String reason, long at) {
      this.reason = reason;
      this.at = at;
    }
  }

  private final Map<String, Exclusion> exclusions = new HashMap<>();
  private final Map<String, String> failures = new HashMap<>();
  private final Map<Observation, Long> speculated = new LinkedHashMap<>();

  /**
   * Add the Observations since the last call; return the findings to report at {@code now}: host to JSON. {@code failing}
   * are the hosts on which fails what succeeds elsewhere, each with a sentence.
   */
  Map<String, String> update(Collection<Observation> observations, Map<String, String> failing, long now) {
    for (Observation observation : observations) {
      if (observation.kind == Observation.SLOW) addSlow(observation, now);
      else addExclusion(observation, now);
    }
    expire(now);
    // The first sentence stays, as with exclusions.
    failures.keySet().retainAll(failing.keySet());
    failing.forEach(failures::putIfAbsent);
    Map<String, String> found = new TreeMap<>();
    addSlowHosts(found, now);
    failures.forEach((host, reason) -> put(found, host, "failing", reason));
    exclusions.forEach((host, exclusion) -> put(found, host, "excluded", exclusion.reason));
    return found;
  }

  private void addSlow(Observation observation, long now) {
    speculated.remove(observation);
    speculated.put(observation, now);
  }

  private void addExclusion(Observation observation, long now) {
    String reason = "Spark excluded the host for the application.";
    if (observation.kind == Observation.STAGE) {
      // The first reason stays while the exclusion lasts: each change of a report causes a heartbeat.
      Exclusion before = exclusions.get(observation.host);
      reason = before == null ? "Spark excluded the host for stage " + observation.stage + "." : before.reason;
    }
    exclusions.put(observation.host, new Exclusion(reason, now));
  }

  private void expire(long now) {
    exclusions.values().removeIf(exclusion -> now - exclusion.at >= FINDING_TTL);
    int surplus = speculated.size() - MAX_TASKS;
    for (Iterator<Long> it = speculated.values().iterator(); it.hasNext(); surplus--) {
      long at = it.next();
      if (surplus > 0 || now - at >= SPECULATION_WINDOW) it.remove();
    }
  }

  private void addSlowHosts(Map<String, String> found, long now) {
    Map<String, Integer> tasks = new HashMap<>();
    Map<String, Set<String>> stages = new HashMap<>();
    Set<String> fresh = new HashSet<>();
    speculated.forEach((task, at) -> {
      tasks.merge(task.host, 1, Integer::sum);
      stages.computeIfAbsent(task.host, host -> new HashSet<>()).add(task.stage);
      if (now - at < FINDING_TTL) fresh.add(task.host);
    });
    for (String host : fresh) {
      int itsTasks = tasks.get(host);
      int itsStages = stages.get(host).size();
      if (itsStages >= MIN_STAGES || itsTasks >= MIN_TASKS) put(found, host, "slow", sentence(itsTasks, itsStages));
    }
  }

  private static void put(Map<String, String> found, String host, String kind, String reason) {
    if (!Report.isNodeId(host) || (found.size() >= MAX_HOSTS && !found.containsKey(host))) return;
    found.put(host, "{\"kind\":\"" + kind + "\",\"reason\":" + Json.text(reason) + "}");
  }

  private static String sentence(int tasks, int stages) {
    String of = stages == 1 ? "1 stage" : stages + " stages";
    return "Spark speculated " + tasks + " tasks of " + of + " that ran on the host within a minute, and the copies ended first.";
  }
}
