package blocklist.spark;

import java.util.HashMap;
import java.util.List;
import java.util.Map;

/*
 * Chooses the executors that still get tasks if their node has a canary block: of each node one for each resource profile, as
 * a stage runs in executors of its profile only. It is the one with the lowest number of those on which Spark itself would
 * start tasks, and stays the same while it is one of them.
 */
final class Canaries {
  /* Node and resource profile to the id of their executor. */
  private Map<String, String> chosen = new HashMap<>();

  /* Choose for these LiveHosts, which are all. */
  void choose(List<LiveHost> hosts) {
    Map<String, String> next = new HashMap<>();
    for (LiveHost host : hosts) {
      host.usableExecutors.forEach((executor, profile) -> {
        String group = group(host, profile);
        String best = next.get(group);
        if (best == null || isBefore(executor, best, chosen.get(group))) next.put(group, executor);
      });
    }
    chosen = next;
    for (LiveHost host : hosts) {
      host.usableExecutors.forEach((executor, profile) -> {
        if (executor.equals(chosen.get(group(host, profile)))) host.canaries.add(executor);
      });
    }
  }

  private static String group(LiveHost host, Integer profile) {
    return profile + " " + host.node;
  }

  private static boolean isBefore(String one, String other, String present) {
    if (one.equals(present) || other.equals(present)) return one.equals(present);
    return one.length() != other.length() ? one.length() < other.length() : one.compareTo(other) < 0;
  }
}
