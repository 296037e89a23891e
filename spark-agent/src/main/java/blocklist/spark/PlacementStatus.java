package blocklist.spark;

import java.util.Collections;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/** Whether new pods keep off the blocked nodes. Immutable. */
final class PlacementStatus {
  /** Where the agent does not place pods: nothing is waited for, and nothing is refused. */
  static final PlacementStatus OFF = new PlacementStatus(null, Collections.emptySet(), true, null, Collections.emptyMap());

  private final Table table;
  private final Set<String> openNodes;
  private final boolean settled;
  private final String failure;
  private final Map<String, String> refused;

  /**
   * {@code settled}: no pod that may still start on a blocked node is without a node. {@code failure}: why new pods do
   * not keep off any node; null if they do. {@code refused}: node id to reason.
   */
  PlacementStatus(Table table, Set<String> openNodes, boolean settled, String failure, Map<String, String> refused) {
    this.table = table;
    this.openNodes = openNodes;
    this.settled = settled;
    this.failure = failure;
    this.refused = refused;
  }

  /** Whether the blocks of this table, other than the refused ones, are in force for new pods. */
  boolean isInForce(Table present, Plan plan, long now) {
    if (this == OFF || failure != null || present.ended(now)) return true;
    return settled && table == present && openNodes.equals(PlacementInput.openNodes(plan));
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
