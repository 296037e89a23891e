package blocklist.spark;

import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.concurrent.TimeUnit;

/** Times for people, and a clock that nobody sets. */
final class Times {
  private Times() {}

  /** Milliseconds by a clock that never goes back and never jumps, for durations. */
  static long monotonic() {
    return TimeUnit.NANOSECONDS.toMillis(System.nanoTime());
  }

  /** Unix milliseconds as 2026-11-23T16:20:31Z. */
  static String utc(long millis) {
    return Instant.ofEpochMilli(millis).truncatedTo(ChronoUnit.SECONDS).toString();
  }
}
