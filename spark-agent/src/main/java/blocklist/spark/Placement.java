package blocklist.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

/*
 * Which nodes new executors keep off, by name. Pure and immutable; the same for the same input in any order.
 *
 * A driver does not know the nodes of its cluster, only those on which it has, or had, executors. So the names of all
 * blocks are excluded, whether or not there are such nodes: the keys of the table that may be names of nodes, and the
 * nodes that the application knows by another name. An address counts as a name of a node only if somebody has blocked
 * it as such, or if a known node is named by an address.
 *
 * Not excluded is a blocked node whose hosts stay open for tasks. And if no executor runs on an open node, and new ones
 * find none for a while, blocks give way: first those of nodes that the application knows, then the weakest.
 */
final class Placement {
  /* Of node names in a pod; the API server refuses an object of more than 1.5 MB. */
  static final int MAX_NAMES = 1000;

  /* Names of nodes, in order. */
  final List<String> names;
  /* Each of them to the ids of its blocks. */
  final Map<String, Set<String>> idsByName;
  /* Node id to the reason why new executors may start there. */
  final Map<String, String> refused;
  /* When the first block ends, in Unix milliseconds. */
  final long validUntil;

  private Placement(Map<String, Set<String>> idsByName, Map<String, String> refused, long validUntil) {
    this.names = Collections.unmodifiableList(new ArrayList<>(idsByName.keySet()));
    this.idsByName = Collections.unmodifiableMap(idsByName);
    this.refused = Collections.unmodifiableMap(refused);
    this.validUntil = validUntil;
  }

  /* Decide at `now` (Unix ms) for these Nodes; `givingWay` is the number of blocks that give way. */
  static Placement make(Table table, Collection<Node> nodes, int givingWay, int maxNames, long now) {
    return new Maker(table, nodes, givingWay, maxNames, now).placement();
  }

  /* The number of blocks that give way when so many were not enough. */
  static int next(int givingWay) {
    return givingWay >= MAX_NAMES ? givingWay : 2 * givingWay + 1;
  }

  /* A node on which an application has, or had, executors. Immutable. */
  static final class Node {
    final String name;
    /* Its name, its addresses, and those of its hosts. */
    final String[] names;
    /* Whether it is blocked but stays open for tasks, so that executors on it are of use. */
    final boolean leftOpen;

    Node(String name, String[] names, boolean leftOpen) {
      this.name = name;
      this.names = names;
      this.leftOpen = leftOpen;
    }
  }

  /*
   * How many blocks give way so that an application gets executors: none while one runs on an open node. Otherwise, each
   * time that new pods have been waiting for a node for PATIENCE milliseconds, more than the time before.
   *
   * The caller passes the time in milliseconds by a clock that never goes back. THREADING: the caller guards it.
   */
  static final class Guard {
    static final long PATIENCE = 30000;

    private int givingWay = 0;
    private boolean waiting = false;
    private long since = 0;

    /* `hasOpenExecutor`: an executor runs on a node that is not blocked, or stays open, or is a canary. `isWaiting`: a pod that keeps off
       the present nodes finds no node. */
    int update(boolean hasOpenExecutor, boolean isWaiting, long now) {
      if (hasOpenExecutor) givingWay = 0;
      boolean continues = waiting && isWaiting && !hasOpenExecutor;
      waiting = isWaiting && !hasOpenExecutor;
      if (!continues) since = now;
      else if (now - since >= PATIENCE) {
        givingWay = Placement.next(givingWay);
        waiting = false;
      }
      return givingWay;
    }
  }

  /** What the placement of new pods follows from in the scheduler, at one moment. Immutable. */
  static final class Input {
    final Table table;
    /** The names of blocked nodes that stay open for tasks. */
    final Set<String> openNodes;
    /** Whether Spark may start tasks on a live host. */
    final boolean hasOpenExecutor;
    /** The ids of all executors that have registered. */
    final Set<String> registered;
    /** Node to the list of its names and addresses, for the live hosts whose names are known. */
    private final Map<String, Set<String>> namesByNode = new HashMap<>();

    Input(Table table, Plan plan, List<LiveHost> liveHosts, Set<String> registered) {
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

  /** Whether new pods keep off the blocked nodes. Immutable. */
  static final class Status {
    /** Where the agent does not place pods: nothing is waited for, and nothing is refused. */
    static final Status OFF = new Status(null, Collections.emptySet(), true, null, Collections.emptyMap());

    private final Table table;
    private final Set<String> openNodes;
    private final boolean settled;
    private final String failure;
    private final Map<String, String> refused;

    /**
     * {@code settled}: no pod that may still start on a blocked node is without a node. {@code failure}: why new pods do
     * not keep off any node; null if they do. {@code refused}: node id to reason.
     */
    Status(Table table, Set<String> openNodes, boolean settled, String failure, Map<String, String> refused) {
      this.table = table;
      this.openNodes = openNodes;
      this.settled = settled;
      this.failure = failure;
      this.refused = refused;
    }

    /** Whether the blocks of this table, other than the refused ones, are in force for new pods. */
    boolean isInForce(Table present, Plan plan, long now) {
      if (this == OFF || failure != null || present.ended(now)) return true;
      return settled && table == present && openNodes.equals(Placement.Input.openNodes(plan));
    }

    /**
     * Node id to the reason why new executors may start there. Those of the table before stand until it is known what
     * follows from this one: the service counts a block that it was told of as applied once it is no longer refused.
     */
    Map<String, String> refused(Table present, long now) {
      if (failure == null) return table == present ? refused : stillRefused(present);
      Map<String, String> all = new TreeMap<>();
      for (Table.Entry entry : present.entries().values())
        if (!entry.ended(now) && all.size() <= Report.MAX_REFUSED) all.put(entry.id, failure);
      return all;
    }

    private Map<String, String> stillRefused(Table present) {
      Map<String, String> still = new TreeMap<>();
      if (refused.isEmpty()) return still;
      for (Table.Entry entry : present.entries().values()) if (refused.containsKey(entry.id)) still.put(entry.id, refused.get(entry.id));
      return still;
    }
  }

  private static final class Maker {
    private final Table table;
    private final int maxNames;
    private final long now;
    /* Current entries by id: the strongest of each. Ids that known nodes have. Ids that are not excluded. */
    private final Map<String, Table.Entry> entries = new HashMap<>();
    private final Set<String> knownIds = new HashSet<>();
    private final Set<String> openIds = new HashSet<>();
    private final Map<String, List<Table.Entry>> nodeEntries = new HashMap<>();
    private final Map<String, String> refused = new TreeMap<>();
    private boolean namedByAddress = false;
    private long validUntil = Long.MAX_VALUE;

    Maker(Table table, Collection<Node> nodes, int givingWay, int maxNames, long now) {
      this.table = table;
      this.maxNames = maxNames;
      this.now = now;
      for (Table.Entry entry : table.entries().values()) add(entry);
      for (Node node : nodes) add(node);
      giveWay(givingWay);
    }

    private void add(Table.Entry entry) {
      if (entry.ended(now)) return;
      validUntil = Math.min(validUntil, entry.end);
      Table.Entry before = entries.get(entry.id);
      if (before == null || isStronger(entry, before)) entries.put(entry.id, entry);
    }

    private void add(Node node) {
      namedByAddress |= HostNames.address(node.name) != null;
      List<Table.Entry> its = new ArrayList<>();
      for (String name : node.names) {
        for (String key : HostNames.keys(name)) {
          Table.Entry entry = table.current(key, now);
          if (entry == null) continue;
          its.add(entry);
          knownIds.add(entry.id);
          if (node.leftOpen) openIds.add(entry.id);
        }
      }
      if (!its.isEmpty() && !node.leftOpen) nodeEntries.put(node.name, its);
    }

    private void giveWay(int count) {
      if (count == 0) return;
      List<Table.Entry> weakest = sorted(false);
      for (int pass = 0; pass < 2; pass++) {
        for (Table.Entry entry : weakest) {
          if (count == 0) return;
          if (knownIds.contains(entry.id) != (pass == 0) || !openIds.add(entry.id)) continue;
          refused.put(entry.id, Refusals.noOtherNode(Guard.PATIENCE / 1000));
          count--;
        }
      }
    }

    Placement placement() {
      TreeMap<String, Set<String>> names = new TreeMap<>();
      nodeEntries.forEach((node, its) -> {
        if (!isOpen(its)) for (Table.Entry entry : its) put(names, node, entry);
      });
      Map<String, Set<String>> keysById = keysById();
      for (Table.Entry entry : sorted(true))
        if (!openIds.contains(entry.id)) for (String key : keysById.get(entry.id)) put(names, key, entry);
      return new Placement(names, refused, validUntil);
    }

    private void put(Map<String, Set<String>> names, String name, Table.Entry entry) {
      if (names.containsKey(name)) names.get(name).add(entry.id);
      else if (!NodeAffinity.isNodeName(name)) refused.put(entry.id, "New executors may start there: " + name + " cannot be the name of a node.");
      else if (names.size() >= maxNames) refused.put(entry.id, Refusals.tooManyNames(maxNames));
      else names.put(name, new TreeSet<>(Collections.singleton(entry.id)));
    }

    /* A node gives way if all of its blocks do. */
    private boolean isOpen(List<Table.Entry> its) {
      return its.stream().allMatch(entry -> openIds.contains(entry.id));
    }

    /* Id to the keys that may be names of nodes, in order. */
    private Map<String, Set<String>> keysById() {
      Map<String, Set<String>> keys = new HashMap<>();
      for (String each : entries.keySet()) keys.put(each, new TreeSet<>());
      table.entries().forEach((key, entry) -> {
        if (entry.ended(now) || !NodeAffinity.isNodeName(key)) return;
        boolean isName = HostNames.address(key) == null || namedByAddress || key.equals(HostNames.normalize(entry.id));
        if (isName) keys.get(entry.id).add(key);
      });
      return keys;
    }

    /* Of different ids. */
    private List<Table.Entry> sorted(boolean strongestFirst) {
      List<Table.Entry> sorted = new ArrayList<>(entries.values());
      Comparator<Table.Entry> weakestFirst = Maker::compare;
      sorted.sort(strongestFirst ? weakestFirst.reversed() : weakestFirst);
      return sorted;
    }

    private static int compare(Table.Entry one, Table.Entry other) {
      if (isStronger(one, other)) return 1;
      return isStronger(other, one) ? -1 : one.id.compareTo(other.id);
    }

    private static boolean isStronger(Table.Entry one, Table.Entry other) {
      if (one.action != other.action) return one.action > other.action;
      return one.rank > other.rank;
    }
  }
}
