package blocklist.spark;

import java.time.Instant;
import java.time.temporal.ChronoUnit;

/** Times for people. */
final class Times {
  private Times() {}

  /** Unix milliseconds as 2026-11-23T16:20:31Z. */
  static String utc(long millis) {
    return Instant.ofEpochMilli(millis).truncatedTo(ChronoUnit.SECONDS).toString();
  }
}
