package blocklist.spark;

import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/* The block of one host: what the entries of the table that match it say together. Immutable. */
final class HostBlock implements Comparable<HostBlock> {
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
  private final List<Table.Entry> entries;

  /* There is at least one entry. */
  HostBlock(String host, String node, List<Table.Entry> entries) {
    this.host = host;
    this.node = node;
    this.entries = entries;
    Table.Entry first = entries.get(0);
    long lastEnd = first.end;
    int highest = first.rank;
    for (Table.Entry entry : entries) {
      if (isStronger(entry, first)) first = entry;
      lastEnd = Math.max(lastEnd, entry.end);
      highest = Math.max(highest, entry.rank);
    }
    end = lastEnd;
    action = first.action;
    evacuate = action == Table.Entry.EVACUATE;
    canary = action == Table.Entry.CANARY;
    id = first.id;
    cause = first.cause;
    rank = highest;
  }

  private static boolean isStronger(Table.Entry one, Table.Entry other) {
    if (one.action != other.action) return one.action > other.action;
    return one.end != other.end ? one.end > other.end : one.id.compareTo(other.id) < 0;
  }

  /* The ids that mean this host. */
  List<String> ids() {
    return entries.stream().map(entry -> entry.id).distinct().collect(Collectors.toList());
  }

  /* The ids that mean this host and ask for its evacuation. */
  List<String> evacuatingIds() {
    Stream<Table.Entry> evacuating = entries.stream().filter(entry -> entry.action == Table.Entry.EVACUATE);
    return evacuating.map(entry -> entry.id).distinct().collect(Collectors.toList());
  }

  /* When the first of its entries ends: then it may be another block. */
  long firstEnd() {
    return entries.stream().mapToLong(entry -> entry.end).min().orElse(end);
  }

  /* The weakest block first: a canary before a mark before an evacuation, then the order of the table, then the host's name. */
  public int compareTo(HostBlock other) {
    if (action != other.action) return action < other.action ? -1 : 1;
    if (rank != other.rank) return rank < other.rank ? -1 : 1;
    return host.compareTo(other.host);
  }
}
