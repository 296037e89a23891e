package blocklist.spark;

/**
 * The service's clock: blocks end by it, whatever this machine's says. This machine's is used as long as the two agree
 * within MAX_DIFFERENCE, because the Date of a response has no milliseconds; otherwise the Date of the last response, and
 * the time that has passed since.
 *
 * <p>THREADING: all methods may be called from any thread.
 */
class ServiceClock {
  private static final long MAX_DIFFERENCE = 5000;
  private static final long UNKNOWN = 0;

  private long date = UNKNOWN;
  private long receivedAt = 0;

  /** {@code date} is the Date of a response that has just arrived, in Unix milliseconds; 0 if it has none. */
  synchronized void onDate(long date) {
    if (date <= 0) return;
    this.date = date;
    receivedAt = monotonic();
  }

  synchronized long now() {
    long own = own();
    if (date == UNKNOWN) return own;
    long service = date + monotonic() - receivedAt;
    return Math.abs(own - service) <= MAX_DIFFERENCE ? own : service;
  }

  /** This machine's, in Unix milliseconds. */
  long own() {
    return System.currentTimeMillis();
  }

  long monotonic() {
    return Times.monotonic();
  }
}
