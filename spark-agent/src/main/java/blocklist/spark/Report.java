package blocklist.spark;

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

  static Map<String, String> fields(String application, Snapshot snapshot) {
    Map<String, String> fields = new TreeMap<>();
    addExecutors(fields, application, snapshot);
    boolean applies = snapshot.mode == Mode.APPLY;
    fields.put("refused", Json.object(applies ? refused(snapshot) : new TreeMap<>()));
    fields.put("mode", Json.text(snapshot.mode.text()));
    fields.put("would", Json.object(snapshot.mode == Mode.OBSERVE ? would(snapshot) : new TreeMap<>()));
    return fields;
  }

  /** Executors on blocked hosts first, as there may be too many. Their tasks are reported, because somebody waits for
      them to end; those of other hosts would change the report each second. */
  private static void addExecutors(Map<String, String> fields, String application, Snapshot snapshot) {
    Map<String, String> managers = new TreeMap<>();
    Map<String, String> running = new TreeMap<>();
    for (boolean blocked : new boolean[] {true, false}) {
      for (Executor executor : snapshot.executors) {
        HostBlock block = snapshot.blockOf(executor);
        String node = block == null ? executor.node : block.id;
        String id = application + ":" + executor.id;
        if (managers.size() >= MAX_ENTRIES || (block != null) != blocked || !isNodeId(node) || !isNodeId(id)) continue;
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
    if (isCutOff(snapshot) || snapshot.mode == Mode.OFF) return -1;
    return snapshot.failure == null ? snapshot.revision : snapshot.table.revision;
  }

  /** Whether blocks are refused that the report leaves out: then nothing may count as applied. */
  static boolean isCutOff(Snapshot snapshot) {
    return snapshot.mode == Mode.APPLY && refusals(snapshot).size() > MAX_REFUSED;
  }

  private static Map<String, String> refused(Snapshot snapshot) {
    Map<String, String> reasons = new TreeMap<>();
    refusals(snapshot).forEach((id, reason) -> {
      // The service rejects a report with line ends in a reason, which the message of an exception may have.
      String line = Refusals.shorten(reason.replaceAll("\\p{Cc}", " "), Refusals.MAX_CHARS);
      if (reasons.size() < MAX_REFUSED) reasons.put(id, Json.text(line));
    });
    return reasons;
  }

  /** Node id to reason: all refusals, or more than MAX_REFUSED of them. After a failure, every block is refused. */
  private static Map<String, String> refusals(Snapshot snapshot) {
    Map<String, String> reasons = new TreeMap<>();
    snapshot.refused.forEach((id, reason) -> {
      if (reasons.size() <= MAX_REFUSED && isNodeId(id)) reasons.put(id, reason);
    });
    if (snapshot.failure == null) return reasons;
    for (Table.Entry entry : snapshot.table.entries().values())
      if (reasons.size() <= MAX_REFUSED && isNodeId(entry.id)) reasons.put(entry.id, snapshot.failure);
    return reasons;
  }

  /** Node id to what the agent would do for its block. Not for blocks that mean none of the application's hosts. */
  private static Map<String, String> would(Snapshot snapshot) {
    Map<String, String> found = new TreeMap<>();
    snapshot.plan.covered.forEach((host, block) -> {
      int running = 0;
      for (Executor executor : snapshot.executors) if (executor.host.equals(host) && executor.running > 0) running += executor.running;
      String what = block.canary ? "would leave one executor open on host " + host : "would close host " + host;
      if (snapshot.plan.evacuated.contains(host)) what += " and kill its " + running + " running tasks";
      for (String id : block.ids()) put(found, id, what + ".");
    });
    refusals(snapshot).forEach((id, reason) -> put(found, id, "would refuse: " + reason));
    found.replaceAll((id, what) -> Json.text(Refusals.shorten(what.replaceAll("\\p{Cc}", " "), Refusals.MAX_CHARS)));
    return found;
  }

  private static void put(Map<String, String> found, String id, String what) {
    if (found.size() >= MAX_REFUSED || !isNodeId(id)) return;
    String whole = found.containsKey(id) ? found.get(id) + " " + what : what;
    found.put(id, whole);
  }

  static boolean isNodeId(String text) {
    return text.matches("[A-Za-z0-9._:-]{1,253}") && !".".equals(text) && !"..".equals(text);
  }
}
