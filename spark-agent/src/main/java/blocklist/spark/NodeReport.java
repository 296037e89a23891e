package blocklist.spark;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

/**
 * The nodes of a report: their ids, or what the driver knows about their names and addresses. Left out is what several
 * nodes have and what cannot tell nodes apart, such as loopback addresses.
 */
final class NodeReport {
  /** The service's maximum number of names, and of addresses, of a node. */
  private static final int MAX_NAMES = 16;

  private NodeReport() {}

  /** The ids of nodes with executors, as JSON. */
  static String ids(Snapshot snapshot) {
    List ids = new ArrayList();
    for (Iterator it = hosts(snapshot).keySet().iterator(); it.hasNext();) ids.add(Json.text((String) it.next()));
    return Json.array(ids);
  }

  /** The nodes with executors and the names that {@code directory} knows, as JSON. */
  static String described(Snapshot snapshot, HostDirectory directory) {
    Map names = new TreeMap();
    Map uses = new HashMap();
    for (Iterator it = hosts(snapshot).entrySet().iterator(); it.hasNext();) {
      Map.Entry node = (Map.Entry) it.next();
      Set its = names((Set) node.getValue(), directory);
      its.add(HostNames.normalize((String) node.getKey()));
      names.put(node.getKey(), its);
      for (Iterator each = its.iterator(); each.hasNext();) count(uses, each.next());
    }
    List nodes = new ArrayList();
    for (Iterator it = names.entrySet().iterator(); it.hasNext();) {
      Map.Entry node = (Map.Entry) it.next();
      nodes.add(node((String) node.getKey(), (Set) node.getValue(), uses));
    }
    return Json.array(nodes);
  }

  /** Node id to the hosts that it means. */
  private static Map hosts(Snapshot snapshot) {
    Map nodes = new TreeMap();
    for (Iterator it = snapshot.executors.iterator(); it.hasNext();) {
      Executor executor = (Executor) it.next();
      HostBlock block = snapshot.blockOf(executor);
      String id = block == null ? executor.node : block.id;
      if (!Report.isNodeId(id)) continue;
      if (!nodes.containsKey(id)) nodes.put(id, new TreeSet());
      ((Set) nodes.get(id)).add(executor.host);
    }
    return nodes;
  }

  private static Set names(Set hosts, HostDirectory directory) {
    Set names = new TreeSet();
    for (Iterator it = hosts.iterator(); it.hasNext();) {
      String host = (String) it.next();
      if (directory.namesMachines()) names.add(HostNames.normalize(host));
      String[] known = directory.machineNames(host);
      for (int i = 0; known != null && i < known.length; i++) names.add(known[i]);
    }
    return names;
  }

  private static void count(Map uses, Object name) {
    Integer before = (Integer) uses.get(name);
    uses.put(name, Integer.valueOf(before == null ? 1 : before.intValue() + 1));
  }

  private static String node(String id, Set known, Map uses) {
    List names = new ArrayList();
    List addresses = new ArrayList();
    for (Iterator it = known.iterator(); it.hasNext();) {
      String name = (String) it.next();
      if (name.equals(HostNames.normalize(id)) || ((Integer) uses.get(name)).intValue() > 1 || !identifies(name)) continue;
      List kind = HostNames.address(name) == null ? names : addresses;
      if (kind.size() < MAX_NAMES) kind.add(Json.text(name));
    }
    if (names.isEmpty() && addresses.isEmpty()) return Json.text(id);
    return "{\"id\":" + Json.text(id) + ",\"names\":" + Json.array(names) + ",\"addresses\":" + Json.array(addresses) + "}";
  }

  private static boolean identifies(String name) {
    if (HostNames.address(name) == null) return Report.isNodeId(name) && !"localhost".equals(name) && !name.startsWith("localhost.");
    try {
      InetAddress address = InetAddress.getByName(name);
      return !address.isLoopbackAddress() && !address.isAnyLocalAddress() && !address.isLinkLocalAddress();
    } catch (UnknownHostException e) {
      return false;
    }
  }
}
