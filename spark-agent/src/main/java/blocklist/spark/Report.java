package blocklist.spark;

import java.util.Collection;
import java.util.Iterator;
import java.util.Map;
import java.util.TreeMap;

/**
 * What a heartbeat reports: names of fields to JSON. Executors are reported under the blocked id of their node, else
 * under the node's name; names that are not valid node ids are left out.
 */
final class Report {
  /** The service's maximum number of entries. */
  private static final int MAX_ENTRIES = 10000;
  /** Of which each may have a reason of 300 characters; the service accepts 2 MiB. */
  static final int MAX_REFUSED = 1000;

  private Report() {}

  static Map fields(String application, Snapshot snapshot) {
    Map fields = new TreeMap();
    addExecutors(fields, application, snapshot);
    fields.put("refused", Json.object(refused(snapshot)));
    return fields;
  }

  /** Executors on blocked hosts first, as there may be too many. Their tasks are reported, because somebody waits for
      them to end; those of other hosts would change the report each second. */
  private static void addExecutors(Map fields, String application, Snapshot snapshot) {
    Map managers = new TreeMap();
    Map running = new TreeMap();
    for (int pass = 0; pass < 2; pass++) {
      for (Iterator it = snapshot.executors.iterator(); it.hasNext() && managers.size() < MAX_ENTRIES;) {
        Executor executor = (Executor) it.next();
        HostBlock block = snapshot.blockOf(executor);
        String node = block == null ? executor.node : block.id;
        String id = application + ":" + executor.id;
        if ((block == null) != (pass == 1) || !isNodeId(node) || !isNodeId(id)) continue;
        managers.put(id, Json.text(node));
        if (block != null && executor.running >= 0) running.put(id, String.valueOf(executor.running));
      }
    }
    fields.put("taskManagers", Json.object(managers));
    fields.put("runningTasks", Json.object(running));
  }

  /**
   * The revision to acknowledge: the one in force, or after a failure the one of which each block is refused; -1 if there
   * is none, or if there are more refusals than can be reported.
   */
  static long acknowledged(Snapshot snapshot) {
    if (isCutOff(snapshot)) return -1;
    return snapshot.failure == null ? snapshot.revision : snapshot.table.revision;
  }

  /** Whether blocks are refused that the report leaves out: then nothing may count as applied. */
  static boolean isCutOff(Snapshot snapshot) {
    return refusals(snapshot).size() > MAX_REFUSED;
  }

  private static Map refused(Snapshot snapshot) {
    Map reasons = new TreeMap();
    for (Iterator it = refusals(snapshot).entrySet().iterator(); it.hasNext() && reasons.size() < MAX_REFUSED;) {
      Map.Entry entry = (Map.Entry) it.next();
      // The service rejects a report with line ends in a reason, which the message of an exception may have.
      String reason = ((String) entry.getValue()).replaceAll("\\p{Cc}", " ");
      reasons.put(entry.getKey(), Json.text(Refusals.shorten(reason, Refusals.MAX_CHARS)));
    }
    return reasons;
  }

  /** Node id to reason: all refusals, or more than MAX_REFUSED of them. After a failure, every block is refused. */
  private static Map refusals(Snapshot snapshot) {
    Map reasons = new TreeMap();
    for (Iterator it = snapshot.refused.entrySet().iterator(); it.hasNext() && reasons.size() <= MAX_REFUSED;) {
      Map.Entry entry = (Map.Entry) it.next();
      if (isNodeId((String) entry.getKey())) reasons.put(entry.getKey(), entry.getValue());
    }
    if (snapshot.failure == null) return reasons;
    Collection entries = snapshot.table.entries().values();
    for (Iterator it = entries.iterator(); it.hasNext() && reasons.size() <= MAX_REFUSED;) {
      String id = ((TableEntry) it.next()).id;
      if (isNodeId(id)) reasons.put(id, snapshot.failure);
    }
    return reasons;
  }

  static boolean isNodeId(String text) {
    return text.matches("[A-Za-z0-9._:-]{1,253}") && !".".equals(text) && !"..".equals(text);
  }
}
