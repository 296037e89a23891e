package blocklist.spark;

import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

/*
 * Chooses the executors that still get tasks if their node has a canary block: of each node one for each resource profile, as
 * a stage runs in executors of its profile only. It is the one with the lowest number of those on which Spark itself would
 * start tasks, and stays the same while it is one of them.
 */
final class Canaries {
  /* Node and resource profile to the id of their executor. */
  private Map chosen = new HashMap();

  /* Choose for these LiveHosts, which are all. */
  void choose(List hosts) {
    Map next = new HashMap();
    for (Iterator it = hosts.iterator(); it.hasNext();) {
      LiveHost host = (LiveHost) it.next();
      for (Iterator executors = host.usableExecutors.entrySet().iterator(); executors.hasNext();) {
        Map.Entry executor = (Map.Entry) executors.next();
        String group = group(host, executor);
        String best = (String) next.get(group);
        if (best == null || isBefore((String) executor.getKey(), best, chosen.get(group))) next.put(group, executor.getKey());
      }
    }
    chosen = next;
    for (Iterator it = hosts.iterator(); it.hasNext();) {
      LiveHost host = (LiveHost) it.next();
      for (Iterator executors = host.usableExecutors.entrySet().iterator(); executors.hasNext();) {
        Map.Entry executor = (Map.Entry) executors.next();
        if (executor.getKey().equals(chosen.get(group(host, executor)))) host.canaries.add(executor.getKey());
      }
    }
  }

  private static String group(LiveHost host, Map.Entry executor) {
    return executor.getValue() + " " + host.node;
  }

  private static boolean isBefore(String one, String other, Object present) {
    if (one.equals(present) || other.equals(present)) return one.equals(present);
    return one.length() != other.length() ? one.length() < other.length() : one.compareTo(other) < 0;
  }
}
