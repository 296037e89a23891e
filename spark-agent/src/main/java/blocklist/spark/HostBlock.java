package blocklist.spark;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;

/* The block of one host: what the entries of the table that match it say together. Immutable. */
final class HostBlock implements Comparable {
  final String host;
  /* The machine that the host is on. */
  final String node;
  /* Unix milliseconds: the latest end. */
  final long end;
  /* Whether its tasks are to be stopped so that they restart elsewhere: one of the entries says so. */
  final boolean evacuate;
  /* Whether one executor of its node still gets tasks: all of the entries say so. */
  final boolean canary;
  /* Of the strongest entry: the stronger action, then the later end, then the first id. */
  final String id;
  final String cause;
  final int rank;
  private final int action;
  private final List entries;

  /* `entries` are TableEntry, at least one. */
  HostBlock(String host, String node, List entries) {
    this.host = host;
    this.node = node;
    this.entries = entries;
    TableEntry first = (TableEntry) entries.get(0);
    long lastEnd = first.end;
    int highest = first.rank;
    for (Iterator it = entries.iterator(); it.hasNext();) {
      TableEntry entry = (TableEntry) it.next();
      if (isStronger(entry, first)) first = entry;
      lastEnd = Math.max(lastEnd, entry.end);
      highest = Math.max(highest, entry.rank);
    }
    end = lastEnd;
    action = first.action;
    evacuate = action == TableEntry.EVACUATE;
    canary = action == TableEntry.CANARY;
    id = first.id;
    cause = first.cause;
    rank = highest;
  }

  private static boolean isStronger(TableEntry one, TableEntry other) {
    if (one.action != other.action) return one.action > other.action;
    return one.end != other.end ? one.end > other.end : one.id.compareTo(other.id) < 0;
  }

  /* The ids that mean this host. */
  List ids() {
    List ids = new ArrayList();
    for (Iterator it = entries.iterator(); it.hasNext();) {
      TableEntry entry = (TableEntry) it.next();
      if (!ids.contains(entry.id)) ids.add(entry.id);
    }
    return ids;
  }

  /* The ids that mean this host and ask for its evacuation. */
  List evacuatingIds() {
    List ids = new ArrayList();
    for (Iterator it = entries.iterator(); it.hasNext();) {
      TableEntry entry = (TableEntry) it.next();
      if (entry.action == TableEntry.EVACUATE && !ids.contains(entry.id)) ids.add(entry.id);
    }
    return ids;
  }

  /* When the first of its entries ends: then it may be another block. */
  long firstEnd() {
    long first = end;
    for (Iterator it = entries.iterator(); it.hasNext();) first = Math.min(first, ((TableEntry) it.next()).end);
    return first;
  }

  /* The weakest block first: a canary before a mark before an evacuation, then the order of the table, then the host's name. */
  public int compareTo(Object o) {
    HostBlock other = (HostBlock) o;
    if (action != other.action) return action < other.action ? -1 : 1;
    if (rank != other.rank) return rank < other.rank ? -1 : 1;
    return host.compareTo(other.host);
  }
}
