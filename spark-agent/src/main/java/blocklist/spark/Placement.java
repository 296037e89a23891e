package blocklist.spark;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
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
  final List names;
  /* Each of them to the ids of its blocks. */
  final Map idsByName;
  /* Node id to the reason why new executors may start there. */
  final Map refused;
  /* When the first block ends, in Unix milliseconds. */
  final long validUntil;

  private Placement(Map idsByName, Map refused, long validUntil) {
    this.names = Collections.unmodifiableList(new ArrayList(idsByName.keySet()));
    this.idsByName = Collections.unmodifiableMap(idsByName);
    this.refused = Collections.unmodifiableMap(refused);
    this.validUntil = validUntil;
  }

  /* Decide at `now` (Unix ms) for these PlacementNodes; `givingWay` is the number of blocks that give way. */
  static Placement make(Table table, Collection nodes, int givingWay, int maxNames, long now) {
    return new Maker(table, nodes, givingWay, maxNames, now).placement();
  }

  /* The number of blocks that give way when so many were not enough. */
  static int next(int givingWay) {
    return givingWay >= MAX_NAMES ? givingWay : 2 * givingWay + 1;
  }

  private static final class Maker {
    private final Table table;
    private final int maxNames;
    private final long now;
    /* Current entries by id: the strongest of each. Ids that known nodes have. Ids that are not excluded. */
    private final Map entries = new HashMap();
    private final Set knownIds = new HashSet();
    private final Set openIds = new HashSet();
    private final Map nodeEntries = new HashMap();
    private final Map refused = new TreeMap();
    private boolean namedByAddress = false;
    private long validUntil = Long.MAX_VALUE;

    Maker(Table table, Collection nodes, int givingWay, int maxNames, long now) {
      this.table = table;
      this.maxNames = maxNames;
      this.now = now;
      for (Iterator it = table.entries().values().iterator(); it.hasNext();) add((TableEntry) it.next());
      for (Iterator it = nodes.iterator(); it.hasNext();) add((PlacementNode) it.next());
      giveWay(givingWay);
    }

    private void add(TableEntry entry) {
      if (entry.ended(now)) return;
      validUntil = Math.min(validUntil, entry.end);
      TableEntry before = (TableEntry) entries.get(entry.id);
      if (before == null || isStronger(entry, before)) entries.put(entry.id, entry);
    }

    private void add(PlacementNode node) {
      namedByAddress |= HostNames.address(node.name) != null;
      List its = new ArrayList();
      for (int i = 0; i < node.names.length; i++) {
        String[] keys = HostNames.keys(node.names[i]);
        for (int k = 0; k < keys.length; k++) {
          TableEntry entry = table.current(keys[k], now);
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
      List weakest = sorted(false);
      for (int pass = 0; pass < 2; pass++) {
        for (Iterator it = weakest.iterator(); count > 0 && it.hasNext();) {
          TableEntry entry = (TableEntry) it.next();
          if (knownIds.contains(entry.id) != (pass == 0) || !openIds.add(entry.id)) continue;
          refused.put(entry.id, Refusals.noOtherNode(PlacementGuard.PATIENCE / 1000));
          count--;
        }
      }
    }

    Placement placement() {
      TreeMap names = new TreeMap();
      for (Iterator it = nodeEntries.entrySet().iterator(); it.hasNext();) {
        Map.Entry node = (Map.Entry) it.next();
        List its = (List) node.getValue();
        for (Iterator each = its.iterator(); each.hasNext() && !isOpen(its);) put(names, (String) node.getKey(), (TableEntry) each.next());
      }
      Map keysById = keysById();
      for (Iterator it = sorted(true).iterator(); it.hasNext();) {
        TableEntry entry = (TableEntry) it.next();
        if (openIds.contains(entry.id)) continue;
        for (Iterator keys = ((Collection) keysById.get(entry.id)).iterator(); keys.hasNext();) {
          put(names, (String) keys.next(), entry);
        }
      }
      return new Placement(names, refused, validUntil);
    }

    private void put(Map names, String name, TableEntry entry) {
      if (names.containsKey(name)) ((Set) names.get(name)).add(entry.id);
      else if (!NodeAffinity.isNodeName(name)) refused.put(entry.id, "New executors may start there: " + name + " cannot be the name of a node.");
      else if (names.size() >= maxNames) refused.put(entry.id, Refusals.tooManyNames(maxNames));
      else names.put(name, new TreeSet(Collections.singleton(entry.id)));
    }

    /* A node gives way if all of its blocks do. */
    private boolean isOpen(List its) {
      for (Iterator it = its.iterator(); it.hasNext();) if (!openIds.contains(((TableEntry) it.next()).id)) return false;
      return true;
    }

    /* Id to the keys that may be names of nodes, in order. */
    private Map keysById() {
      Map keys = new HashMap();
      for (Iterator it = entries.keySet().iterator(); it.hasNext();) keys.put(it.next(), new TreeSet());
      for (Iterator it = table.entries().entrySet().iterator(); it.hasNext();) {
        Map.Entry each = (Map.Entry) it.next();
        TableEntry entry = (TableEntry) each.getValue();
        String key = (String) each.getKey();
        if (entry.ended(now) || !NodeAffinity.isNodeName(key)) continue;
        boolean isName = HostNames.address(key) == null || namedByAddress || key.equals(HostNames.normalize(entry.id));
        if (isName) ((Set) keys.get(entry.id)).add(key);
      }
      return keys;
    }

    /* TableEntries of different ids. */
    private List sorted(final boolean strongestFirst) {
      List sorted = new ArrayList(entries.values());
      Collections.sort(sorted, new java.util.Comparator() {
        public int compare(Object one, Object other) {
          int order = Maker.this.compare((TableEntry) one, (TableEntry) other);
          return strongestFirst ? -order : order;
        }
      });
      return sorted;
    }

    private int compare(TableEntry one, TableEntry other) {
      if (isStronger(one, other)) return 1;
      return isStronger(other, one) ? -1 : one.id.compareTo(other.id);
    }

    private static boolean isStronger(TableEntry one, TableEntry other) {
      if (one.action != other.action) return one.action > other.action;
      return one.rank > other.rank;
    }
  }
}
