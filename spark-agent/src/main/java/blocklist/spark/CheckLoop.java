package blocklist.spark;

import org.apache.spark.SparkContext;

/** Once a second: recovers the tracker, evacuates tasks that have started since, and ends the agent of a stopped application. */
final class CheckLoop extends Loop {
  private static final long TICK = 1000;

  private final SparkContext sc;
  private final BlocklistAgent agent;

  CheckLoop(SparkContext sc, BlocklistAgent agent) {
    super("blocklist-check", "check the scheduler");
    this.sc = sc;
    this.agent = agent;
  }

  long runOnce() throws Exception {
    if (sc.isStopped()) agent.close();
    else agent.check();
    return TICK;
  }
}
