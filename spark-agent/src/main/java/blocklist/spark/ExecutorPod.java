package blocklist.spark;

import java.util.Set;

/** An executor's pod on Kubernetes, as the driver last saw it. Immutable. */
final class ExecutorPod {
  /** The number of the executor. */
  final long id;
  final String name;
  /** The name of its node; null until it is bound to one. */
  final String node;
  /** The addresses of its node, and its own; empty while they are not known. */
  final String[] nodeAddresses;
  final String[] addresses;
  /** Whether it has ended, or is to end. */
  final boolean ending;
  /** Whether Kubernetes' scheduler has found no node for it. */
  final boolean unschedulable;
  /** Its io.fabric8.kubernetes.api.model.Pod. */
  final Object pod;

  ExecutorPod(long id, String name, String node, String[] nodeAddresses, String[] addresses, boolean ending, boolean unschedulable, Object pod) {
    this.id = id;
    this.name = name;
    this.node = node;
    this.nodeAddresses = nodeAddresses;
    this.addresses = addresses;
    this.ending = ending;
    this.unschedulable = unschedulable;
    this.pod = pod;
  }

  /**
   * Whether it may start on any node, as far as the driver knows. It may have missed events of the pod for a while: one
   * whose executor is among {@code registered}, the ids of executors, has started.
   */
  boolean isUnbound(Set registered) {
    return node == null && !ending && !registered.contains(String.valueOf(id));
  }
}
