package blocklist.spark;

/** An executor, its host as Spark names it, and the number of its running tasks. Immutable. */
final class Executor {
  private static final int UNKNOWN = -1;

  final String id;
  final String host;
  /** Negative if it cannot be known. */
  final int running;

  Executor(String id, String host, int running) {
    this.id = id;
    this.host = host;
    this.running = running;
  }

  Executor withUnknownTasks() {
    return new Executor(id, host, UNKNOWN);
  }
}
