package blocklist.spark;

/** A response of the service. */
final class Response {
  final int status;
  /** To be returned in If-None-Match; null without one. */
  final String etag;
  /** Eight hexadecimal digits that identify the log of changes; empty without them. */
  final String history;
  /**
   * The longest wait that the agent accepts, in seconds. It is what it waits at most between its own attempts, and with the
   * interval of heartbeats it is less than a lease of 50 s: who obeys for longer is removed, and has an old list meanwhile.
   */
  static final long MAX_RETRY_AFTER = 30;

  /** Seconds to wait before the next request, 0 to MAX_RETRY_AFTER. */
  final long retryAfter;
  /** Its Date, in Unix milliseconds; 0 without one. */
  final long date;
  /** What the BodyReader has returned; null for a status other than 200. */
  final Object body;

  Response(int status, String etag, String history, long retryAfter, long date, Object body) {
    this.status = status;
    this.etag = etag;
    this.history = history != null && history.matches("[0-9a-f]{8}") ? history : "";
    this.retryAfter = Math.min(MAX_RETRY_AFTER, Math.max(0, retryAfter));
    this.date = date;
    this.body = body;
  }
}
