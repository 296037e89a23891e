package blocklist.spark;

/** An exclusion or a speculation by Spark itself. Immutable. */
final class Observation {
  /** The host is excluded for the application, or for a stage; or a task of it runs a second time elsewhere. */
  static final int APPLICATION = 0;
  static final int STAGE = 1;
  static final int SLOW = 2;

  final int kind;
  final String host;
  /** Id and attempt, such as 3.0; empty for the application. */
  final String stage;
  /** The task's number in the stage; -1 if the host is excluded. */
  final int task;

  Observation(int kind, String host, String stage, int task) {
    this.kind = kind;
    this.host = host;
    this.stage = stage;
    this.task = task;
  }

  public boolean equals(Object other) {
    if (!(other instanceof Observation)) return false;
    Observation its = (Observation) other;
    return kind == its.kind && task == its.task && host.equals(its.host) && stage.equals(its.stage);
  }

  public int hashCode() {
    return (kind * 31 + task) * 31 + host.hashCode() * 31 + stage.hashCode();
  }
}
