package blocklist.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** What the placement of new pods follows from in the scheduler, at one moment. Immutable. */
final class PlacementInput {
  final Table table;
  /** The names of blocked nodes that stay open for tasks. */
  final Set openNodes;
  /** Whether Spark may start tasks on a live host. */
  final boolean hasOpenExecutor;
  /** The ids of all executors that have registered. */
  final Set registered;
  /** Node to the list of its names and addresses, for the live hosts whose names are known. */
  private final Map namesByNode = new HashMap();

  PlacementInput(Table table, Plan plan, List liveHosts, Set registered) {
    this.table = table;
    this.openNodes = openNodes(plan);
    this.registered = registered;
    boolean open = false;
    for (Iterator it = liveHosts.iterator(); it.hasNext();) {
      LiveHost host = (LiveHost) it.next();
      open |= host.open && !plan.excludes(host.name);
      for (int i = 0; host.names != null && i < host.names.length; i++) add(host.node, host.names[i]);
    }
    hasOpenExecutor = open;
  }

  static Set openNodes(Plan plan) {
    Set open = new HashSet();
    for (Iterator it = plan.matched.values().iterator(); it.hasNext();) {
      HostBlock block = (HostBlock) it.next();
      if (!plan.covered.containsKey(block.host)) open.add(block.node);
    }
    return open;
  }

  /** PlacementNodes: those of the live hosts, and those of these ExecutorPods. */
  List nodes(Iterable pods) {
    Map all = new HashMap();
    for (Iterator it = namesByNode.entrySet().iterator(); it.hasNext();) {
      Map.Entry node = (Map.Entry) it.next();
      all.put(node.getKey(), new HashSet((Set) node.getValue()));
    }
    for (Iterator it = pods.iterator(); it.hasNext();) {
      ExecutorPod pod = (ExecutorPod) it.next();
      if (pod.node == null) continue;
      if (!all.containsKey(pod.node)) all.put(pod.node, new HashSet());
      Set names = (Set) all.get(pod.node);
      names.add(HostNames.normalize(pod.node));
      for (int i = 0; i < pod.nodeAddresses.length; i++) names.add(pod.nodeAddresses[i]);
      // The address of a pod that has ended may be another one's.
      for (int i = 0; !pod.ending && i < pod.addresses.length; i++) names.add(pod.addresses[i]);
    }
    List nodes = new ArrayList();
    for (Iterator it = all.entrySet().iterator(); it.hasNext();) {
      Map.Entry node = (Map.Entry) it.next();
      Set names = (Set) node.getValue();
      nodes.add(new PlacementNode((String) node.getKey(), (String[]) names.toArray(new String[names.size()]), openNodes.contains(node.getKey())));
    }
    return nodes;
  }

  private void add(String node, String name) {
    if (!namesByNode.containsKey(node)) namesByNode.put(node, new HashSet());
    ((Set) namesByNode.get(node)).add(name);
  }
}
