package blocklist.spark;

/** An executor, its host as Spark names it, the node of the host, and the number of its running tasks. Immutable. */
final class Executor {
  private static final int UNKNOWN = -1;

  final String id;
  final String host;
  /** The host itself while its node is not known. */
  final String node;
  /** Negative if it cannot be known. */
  final int running;

  Executor(String id, String host, String node, int running) {
    this.id = id;
    this.host = host;
    this.node = node;
    this.running = running;
  }

  Executor withUnknownTasks() {
    return new Executor(id, host, node, UNKNOWN);
  }
}
