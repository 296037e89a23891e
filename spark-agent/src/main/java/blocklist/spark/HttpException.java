package blocklist.spark;

import java.io.IOException;

/** The service has refused a request. */
final class HttpException extends IOException {
  final int status;
  /** Seconds to wait before the next request. */
  final long retryAfter;

  HttpException(String what, Response response) {
    super("HTTP " + response.status + " to " + what);
    status = response.status;
    retryAfter = response.retryAfter;
  }
}
