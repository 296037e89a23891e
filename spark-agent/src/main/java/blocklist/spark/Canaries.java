package blocklist.spark;

import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

/*
 * Chooses for each node the executor that still gets tasks if the node has a canary block: of those on which Spark itself
 * would start tasks, the one with the lowest number. It stays the same while it is one of them.
 */
final class Canaries {
  /* Node to the id of its executor. */
  private Map chosen = new HashMap();

  /* Choose for these LiveHosts, which are all. */
  void choose(List hosts) {
    Map next = new HashMap();
    for (Iterator it = hosts.iterator(); it.hasNext();) {
      LiveHost host = (LiveHost) it.next();
      for (Iterator ids = host.usableExecutors.iterator(); ids.hasNext();) {
        String id = (String) ids.next();
        String best = (String) next.get(host.node);
        if (best == null || isBefore(id, best, chosen.get(host.node))) next.put(host.node, id);
      }
    }
    chosen = next;
    for (Iterator it = hosts.iterator(); it.hasNext();) {
      LiveHost host = (LiveHost) it.next();
      String id = (String) chosen.get(host.node);
      if (host.usableExecutors.contains(id)) host.canary = id;
    }
  }

  private static boolean isBefore(String one, String other, Object present) {
    if (one.equals(present) || other.equals(present)) return one.equals(present);
    return one.length() != other.length() ? one.length() < other.length() : one.compareTo(other) < 0;
  }
}
