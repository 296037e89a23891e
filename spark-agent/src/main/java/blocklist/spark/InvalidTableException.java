package blocklist.spark;

import java.io.IOException;

/* The service's text is no table. The message says where and why; the table before it stays in force. */
final class InvalidTableException extends IOException {
  InvalidTableException(String message) {
    super(message);
  }
}
