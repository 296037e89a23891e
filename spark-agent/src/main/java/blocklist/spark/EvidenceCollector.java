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
 * Evidence against hosts from what Spark itself does with them. Pure; times are passed in, in milliseconds.
 *
 * <p>An exclusion is evidence while it lasts. A few slow tasks are normal: a host is slow if tasks of MIN_STAGES stages,
 * or MIN_TASKS tasks, were speculated within SPECULATION_WINDOW. Memory: at most MAX_TASKS speculated tasks.
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

  private static final class Exclusion {
    final String reason;
    final long at;

    Exclusion(String reason, long at) {
      this.reason = reason;
      this.at = at;
    }
  }

  private final Map exclusions = new HashMap();
  private final Map speculated = new LinkedHashMap();

  /** Add the Observations since the last call; return the findings to report at {@code now}: host to JSON. */
  Map update(Collection observations, long now) {
    for (Iterator it = observations.iterator(); it.hasNext();) {
      Observation observation = (Observation) it.next();
      if (observation.kind == Observation.SLOW) addSlow(observation, now);
      else addExclusion(observation, now);
    }
    expire(now);
    Map found = new TreeMap();
    addSlowHosts(found, now);
    for (Iterator it = exclusions.entrySet().iterator(); it.hasNext();) {
      Map.Entry entry = (Map.Entry) it.next();
      put(found, (String) entry.getKey(), "excluded", ((Exclusion) entry.getValue()).reason);
    }
    return found;
  }

  private void addSlow(Observation observation, long now) {
    speculated.remove(observation);
    speculated.put(observation, Long.valueOf(now));
  }

  private void addExclusion(Observation observation, long now) {
    String reason = "Spark excluded the host for the application.";
    if (observation.kind == Observation.STAGE) {
      // The first reason stays while the exclusion lasts: each change of a report causes a heartbeat.
      Exclusion before = (Exclusion) exclusions.get(observation.host);
      reason = before == null ? "Spark excluded the host for stage " + observation.stage + "." : before.reason;
    }
    exclusions.put(observation.host, new Exclusion(reason, now));
  }

  private void expire(long now) {
    for (Iterator it = exclusions.values().iterator(); it.hasNext();) if (now - ((Exclusion) it.next()).at >= FINDING_TTL) it.remove();
    int surplus = speculated.size() - MAX_TASKS;
    for (Iterator it = speculated.values().iterator(); it.hasNext(); surplus--) {
      long at = ((Long) it.next()).longValue();
      if (surplus > 0 || now - at >= SPECULATION_WINDOW) it.remove();
    }
  }

  private void addSlowHosts(Map found, long now) {
    Map tasks = new HashMap();
    Map stages = new HashMap();
    Set fresh = new HashSet();
    for (Iterator it = speculated.entrySet().iterator(); it.hasNext();) {
      Map.Entry entry = (Map.Entry) it.next();
      Observation task = (Observation) entry.getKey();
      Integer before = (Integer) tasks.get(task.host);
      tasks.put(task.host, Integer.valueOf(before == null ? 1 : before.intValue() + 1));
      if (!stages.containsKey(task.host)) stages.put(task.host, new HashSet());
      ((Set) stages.get(task.host)).add(task.stage);
      if (now - ((Long) entry.getValue()).longValue() < FINDING_TTL) fresh.add(task.host);
    }
    for (Iterator it = fresh.iterator(); it.hasNext();) {
      String host = (String) it.next();
      int itsTasks = ((Integer) tasks.get(host)).intValue();
      int itsStages = ((Set) stages.get(host)).size();
      if (itsStages >= MIN_STAGES || itsTasks >= MIN_TASKS) put(found, host, "slow", sentence(itsTasks, itsStages));
    }
  }

  private static void put(Map found, String host, String kind, String reason) {
    if (!Report.isNodeId(host) || (found.size() >= MAX_HOSTS && !found.containsKey(host))) return;
    found.put(host, "{\"kind\":\"" + kind + "\",\"reason\":" + Json.text(reason) + "}");
  }

  private static String sentence(int tasks, int stages) {
    String of = stages == 1 ? "1 stage" : stages + " stages";
    return "Spark speculated " + tasks + " tasks of " + of + " that ran on the host within a minute.";
  }
}
