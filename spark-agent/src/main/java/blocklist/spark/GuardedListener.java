package blocklist.spark;

import org.apache.spark.scheduler.SparkListener;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A listener that throws nothing at Spark's events: an Error, such as that of a Spark with other classes, would end the
 * application. After one it does no more work. THREADING: it has its own monitor.
 */
abstract class GuardedListener extends SparkListener {
  private static final Logger LOG = LoggerFactory.getLogger("blocklist");

  /** What is logged after an Error. */
  private final String consequence;
  private boolean ended = false;

  GuardedListener(String consequence) {
    this.consequence = consequence;
  }

  final synchronized void guarded(Runnable work) {
    if (ended) return;
    try {
      work.run();
    } catch (Throwable t) {
      fail(t);
    }
  }

  final synchronized void fail(Throwable t) {
    ended = true;
    LOG.warn(consequence, t);
  }

  final synchronized void end() {
    ended = true;
  }
}
