package blocklist.spark;

import java.util.List;
import java.util.Map;

/** The state of the blocklist in the scheduler at one moment. Immutable. */
final class Snapshot {
  /** The revision of the table if it is in force; -1 if it is not, or if that is not known. */
  final long revision;
  final Table table;
  final Plan plan;
  /** Node id to the reason why its block is not applied. */
  final Map<String, String> refused;
  /** Executors. */
  final List<Executor> executors;
  /** Why nothing is applied; null if the agent works. */
  final String failure;
  final Mode mode;

  /** In the mode OBSERVE the plan, and what is refused, are as they would be; in the mode OFF there are none. */
  Snapshot(
    long revision, Table table, Plan plan, Map<String, String> refused, List<Executor> executors, String failure, Mode mode
  ) {
    this.revision = revision;
    this.table = table;
    this.plan = plan;
    this.refused = refused;
    this.executors = executors;
    this.failure = failure;
    this.mode = mode;
  }

  /**
   * The block of an executor's host; null if there is none. A host may have become another one's since the executor was
   * lost: a pod's address is used again.
   */
  HostBlock blockOf(Executor executor) {
    HostBlock block = plan.matched.get(executor.host);
    if (block == null || executor.node.equals(executor.host) || executor.node.equals(block.node)) return block;
    return null;
  }
}
