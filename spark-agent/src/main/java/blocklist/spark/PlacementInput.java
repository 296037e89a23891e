package blocklist.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** What the placement of new pods follows from in the scheduler, at one moment. Immutable. */
final class PlacementInput {
  final Table table;
  /** The names of blocked nodes that stay open for tasks. */
  final Set<String> openNodes;
  /** Whether Spark may start tasks on a live host. */
  final boolean hasOpenExecutor;
  /** The ids of all executors that have registered. */
  final Set<String> registered;
  /** Node to the list of its names and addresses, for the live hosts whose names are known. */
  private final Map<String, Set<String>> namesByNode = new HashMap<>();

  PlacementInput(Table table, Plan plan, List<LiveHost> liveHosts, Set<String> registered) {
    this.table = table;
    this.openNodes = openNodes(plan);
    this.registered = registered;
    boolean open = false;
    for (LiveHost host : liveHosts) {
      open |= host.open && !plan.excludes(host.name);
      if (host.names != null) namesByNode.computeIfAbsent(host.node, node -> new HashSet<>()).addAll(Arrays.asList(host.names));
    }
    hasOpenExecutor = open;
  }

  static Set<String> openNodes(Plan plan) {
    Set<String> open = new HashSet<>();
    for (HostBlock block : plan.matched.values()) {
      if (!plan.covered.containsKey(block.host)) open.add(block.node);
    }
    return open;
  }

  /** Those of the live hosts, and those of these pods. */
  List<Placement.Node> nodes(Iterable<ExecutorPods.Pod> pods) {
    Map<String, Set<String>> all = new HashMap<>();
    namesByNode.forEach((node, names) -> all.put(node, new HashSet<>(names)));
    for (ExecutorPods.Pod pod : pods) {
      if (pod.node == null) continue;
      Set<String> names = all.computeIfAbsent(pod.node, node -> new HashSet<>());
      names.add(HostNames.normalize(pod.node));
      names.addAll(Arrays.asList(pod.nodeAddresses));
      // The address of a pod that has ended may be another one's.
      if (!pod.ending) names.addAll(Arrays.asList(pod.addresses));
    }
    List<Placement.Node> nodes = new ArrayList<>();
    all.forEach((node, names) -> nodes.add(new Placement.Node(node, names.toArray(new String[0]), openNodes.contains(node))));
    return nodes;
  }
}
