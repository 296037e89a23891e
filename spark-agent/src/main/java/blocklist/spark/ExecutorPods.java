package blocklist.spark;

import java.util.Map;
import java.util.Set;

/** The executors' pods as Spark knows them. All methods may be called from any thread. */
interface ExecutorPods {
  /** An executor's pod on Kubernetes, as the driver last saw it. Immutable. */
  final class Pod {
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

    Pod(long id, String name, String node, String[] nodeAddresses, String[] addresses, boolean ending, boolean unschedulable, Object pod) {
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
    boolean isUnbound(Set<String> registered) {
      return node == null && !ending && !registered.contains(String.valueOf(id));
    }
  }

  /** The pods that Spark had made at one moment, when it was making none. Immutable. */
  final class Made {
    /** The highest number of an executor so far. */
    final long lastId;
    /** The numbers of those that Spark has made, but not yet seen. */
    final Set<Long> unseen;

    Made(long lastId, Set<Long> unseen) {
      this.lastId = lastId;
      this.unseen = unseen;
    }
  }

  /** Spark's KubernetesClient. */
  Object client();

  /** Why new pods cannot be kept off nodes; null if they can. */
  String unsteerable();

  /** The pods by the number of the executor. The map is the same object until one has changed. */
  Map<Long, Pod> pods() throws Exception;

  /**
   * The pods made so far; null if some are being made at this moment. A pod that was made before, and is not among the
   * unseen ones, is among {@code pods} from now on, until it has ended.
   */
  Made made() throws Exception;
}
