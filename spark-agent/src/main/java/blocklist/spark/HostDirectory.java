package blocklist.spark;

import java.util.Collection;

/**
 * The nodes, further names and addresses of hosts. A host is what Spark calls by one name; a node is a machine. Unless a
 * method is overridden, each host is a machine.
 */
interface HostDirectory {
  /** The further names and addresses of a host; null while they are not known. */
  String[] names(String host);

  /** Those of them that are the machine's own, and not only the host's. */
  String[] machineNames(String host);

  /** The name of the machine; null while it is not known. */
  default String node(String host) {
    return host;
  }

  /** As {@code node}, also for a host that is not live any more. */
  default String lastNode(String host) {
    return node(host);
  }

  /** As {@code node} and {@code names}, of an executor: another one may have taken its host's name since. */
  default String executorNode(String executor, String host) {
    return node(host);
  }

  default String[] executorNames(String executor, String host) {
    return machineNames(host);
  }

  /**
   * Milliseconds for which the names of a host have been looked for in vain, once that is too long; else 0. It is too long
   * NOTICE_MILLIS before the host is held no longer: a report takes as long to be sent.
   */
  long overdue(String host);

  long NOTICE_MILLIS = 1000;

  /** Whether the unknown names of a host are still expected: a new revision is not acknowledged meanwhile. */
  boolean isPending(String host);

  /** Why they are not known: a clause that follows "host X, ". */
  default String overdueReason() {
    return "whose addresses are not known";
  }

  /** Whether the name of a host is one of its machine. */
  default boolean namesMachines() {
    return true;
  }

  /** Maximum time in milliseconds for which a host that has just joined gets no task while its names are not known. */
  default long holdMillis() {
    return Plan.HOLD_MILLIS;
  }

  /** Another value once the names of a host that are waited for may have become known. */
  default long version() {
    return 0;
  }

  /** These are all the live hosts. The caller holds the monitor of the scheduler. */
  void retain(Collection<String> hosts);

  default void close() {}
}
