package blocklist.spark;

import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A daemon thread that does the same again and again. A failure is logged once, is visible in {@code lastError}, and is
 * retried with increasing, random delays; nothing ends the loop but {@code close}. Nothing is thrown either: the job, or
 * Spark, may have a handler of uncaught exceptions that ends the driver.
 */
abstract class Loop {
  private static final Logger LOG = LoggerFactory.getLogger("blocklist");
  /** As often as heartbeats: the service bears that, and once it is back an application is served as soon. */
  private static final long MAX_DELAY = 10000;

  private final String what;
  private final Thread thread;
  private final Object monitor = new Object();
  private boolean woken = false;
  private volatile boolean closed = false;
  private volatile String lastError = null;
  private int failures = 0;

  /** {@code what} completes "The agent cannot …". */
  Loop(String name, String what) {
    this.what = what;
    thread = new Thread(this::run, name);
    thread.setDaemon(true);
  }

  /** Do it once. Returns the milliseconds until the next time, unless {@code wake} is called before. */
  abstract long runOnce() throws Exception;

  /** Called after each failure. */
  void onFailure() {}

  /** Called when the loop has ended. */
  void onEnd() {}

  void start() {
    thread.start();
  }

  void wake() {
    synchronized (monitor) {
      woken = true;
      monitor.notifyAll();
    }
  }

  void close() {
    closed = true;
    wake();
  }

  boolean isClosed() {
    return closed;
  }

  /** The error of the present outage; null if there is none. */
  String lastError() {
    return lastError;
  }

  void join(long millis) throws InterruptedException {
    if (millis > 0 && Thread.currentThread() != thread) thread.join(millis);
  }

  private void run() {
    runUntilClosed();
    try {
      onEnd();
    } catch (Throwable t) {
      // The service may then list this application as lapsed.
    }
  }

  private void runUntilClosed() {
    while (!closed) {
      try {
        long pause = runOnce();
        if (failures > 0) LOG.info("The agent can {} again.", what);
        failures = 0;
        lastError = null;
        pause(pause, true);
      } catch (InterruptedException e) {
        return;
      } catch (Throwable t) {
        if (closed) return;
        onError(t);
      }
    }
  }

  private void onError(Throwable t) {
    failures++;
    long delay = Math.min(MAX_DELAY, 500L << Math.min(failures, 10));
    long retryAfter = 0;
    try {
      retryAfter = report(t);
    } catch (Throwable further) {
      // No memory for the message, or a class cannot be loaded because the jar has been overwritten.
      lastError = "an error that cannot be reported";
    }
    try {
      pause(Math.max(retryAfter, (long) (delay * (0.5 + Math.random() / 2))), false);
    } catch (InterruptedException e) {
      closed = true;
    }
  }

  /** Returns the milliseconds to wait at least. */
  private long report(Throwable t) {
    lastError = t.getMessage() == null ? t.toString() : t.getMessage();
    if (failures == 1) LOG.warn("The agent cannot {} and tries again: {}", what, lastError);
    LOG.debug("The agent cannot {}.", what, t);
    onFailure();
    return t instanceof ServiceClient.HttpException ? 1000 * ((ServiceClient.HttpException) t).retryAfter : 0;
  }

  private void pause(long millis, boolean untilWoken) throws InterruptedException {
    long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millis);
    synchronized (monitor) {
      for (long left = millis; left > 0 && !closed && !(untilWoken && woken); left = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime()))
        monitor.wait(left);
      if (untilWoken) woken = false;
    }
  }
}
