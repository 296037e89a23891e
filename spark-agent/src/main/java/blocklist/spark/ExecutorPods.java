package blocklist.spark;

import java.util.Map;

/** The executors' pods as Spark knows them. All methods may be called from any thread. */
interface ExecutorPods {
  /** Spark's KubernetesClient. */
  Object client();

  /** Why new pods cannot be kept off nodes; null if they can. */
  String unsteerable();

  /** The pods: Long to ExecutorPod, by the number of the executor. The map is the same object until one has changed. */
  Map pods() throws Exception;

  /**
   * The pods made so far; null if some are being made at this moment. A pod that was made before, and is not among the
   * unseen ones, is among {@code pods} from now on, until it has ended.
   */
  MadePods made() throws Exception;
}
