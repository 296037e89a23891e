package blocklist.spark;

/* What an application needs to go on, whatever the list says. Immutable. */
final class Requirements {
  /* Minimum number of open hosts: the greater of spark.blocklist.keepHosts and spark.blocklist.minNodes. */
  final int minOpenHosts;
  /* Number of slots that a barrier stage needs at once, while it waits and while it runs; 0 without one. */
  final int barrierSlots;
  /* Whether it runs a continuous query: Spark does not restart its tasks, so hosts are marked only. */
  final boolean continuous;

  Requirements(int keepHosts, int minNodes, int barrierSlots, boolean continuous) {
    this.minOpenHosts = Math.max(keepHosts, minNodes);
    this.barrierSlots = barrierSlots;
    this.continuous = continuous;
  }
}
