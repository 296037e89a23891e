package blocklist.spark;

import java.lang.reflect.Method;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerApplicationStart;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * {@code spark.extraListeners=blocklist.spark.BlocklistListener} starts the agent in any application. Only the driver
 * loads it, while the SparkContext is made: the scheduler is there, and no task can have started. So the first table is
 * in force before the first task.
 *
 * <p>Nothing is thrown here, because Spark would not start the application.
 */
public final class BlocklistListener extends SparkListener {
  private static final Logger LOG = LoggerFactory.getLogger("blocklist");

  private static final int LATE_SECONDS = 60;

  private final SparkConf conf;
  private Settings settings = null;
  private volatile boolean done = false;

  public BlocklistListener(SparkConf conf) {
    this.conf = conf;
    start("contextBeingConstructed");
  }

  /** A second attempt, for a Spark that does not name the context that it makes. */
  public void onApplicationStart(SparkListenerApplicationStart event) {
    if (done) return;
    try {
      Thread late = new Thread(this::startLate, "blocklist-start");
      late.setDaemon(true);
      late.start();
    } catch (Throwable t) {
      // An Error, such as that of too many threads, would end the application.
      LOG.warn("The agent is not started.", t);
    }
  }

  private void startLate() {
    try {
      for (int i = 0; i < LATE_SECONDS && !done; i++, Thread.sleep(1000)) start("getActive");
    } catch (InterruptedException e) {
      LOG.debug("The agent is not started.", e);
    }
  }

  void start(String method) {
    try {
      if (settings == null) settings = Settings.of(conf);
      if (settings.url.length() == 0) {
        LOG.warn("The agent is not started, because spark.blocklist.url is not set.");
        done = true;
        return;
      }
      SparkContext sc = context(method);
      if (sc == null || sc.taskScheduler() == null) return;
      done = true;
      BlocklistAgent.start(sc, settings);
    } catch (Throwable t) {
      LOG.warn("The agent is not started.", t);
    }
  }

  private static SparkContext context(String name) throws Exception {
    Class<?> companion = Class.forName("org.apache.spark.SparkContext$", true, SparkContext.class.getClassLoader());
    Method method = companion.getDeclaredMethod(name);
    method.setAccessible(true);
    return (SparkContext) Scala.orNull((scala.Option<?>) method.invoke(companion.getField("MODULE$").get(null)));
  }
}
