package blocklist.spark;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;

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
    return Json.array(hosts(snapshot).keySet().stream().map(Json::text).collect(Collectors.toList()));
  }

  /** The nodes with executors and the names that {@code directory} knows, as JSON. */
  static String described(Snapshot snapshot, HostDirectory directory) {
    Map<String, Set<String>> names = new TreeMap<>();
    Map<String, Integer> uses = new HashMap<>();
    hosts(snapshot).forEach((id, hosts) -> {
      Set<String> its = names(hosts, directory);
      its.add(HostNames.normalize(id));
      names.put(id, its);
      for (String name : its) uses.merge(name, 1, Integer::sum);
    });
    List<String> nodes = new ArrayList<>();
    names.forEach((id, its) -> nodes.add(node(id, its, uses)));
    return Json.array(nodes);
  }

  /** Node id to the hosts that it means. */
  private static Map<String, Set<String>> hosts(Snapshot snapshot) {
    Map<String, Set<String>> nodes = new TreeMap<>();
    for (Executor executor : snapshot.executors) {
      HostBlock block = snapshot.blockOf(executor);
      String id = block == null ? executor.node : block.id;
      if (Report.isNodeId(id)) nodes.computeIfAbsent(id, each -> new TreeSet<>()).add(executor.host);
    }
    return nodes;
  }

  private static Set<String> names(Set<String> hosts, HostDirectory directory) {
    Set<String> names = new TreeSet<>();
    for (String host : hosts) {
      if (directory.namesMachines()) names.add(HostNames.normalize(host));
      String[] known = directory.machineNames(host);
      if (known != null) names.addAll(Arrays.asList(known));
    }
    return names;
  }

  private static String node(String id, Set<String> known, Map<String, Integer> uses) {
    List<String> names = new ArrayList<>();
    List<String> addresses = new ArrayList<>();
    for (String name : known) {
      if (name.equals(HostNames.normalize(id)) || uses.get(name) > 1 || !identifies(name)) continue;
      List<String> kind = HostNames.address(name) == null ? names : addresses;
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
