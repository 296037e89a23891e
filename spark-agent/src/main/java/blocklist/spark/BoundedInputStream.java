package blocklist.spark;

import java.io.FilterInputStream;
import java.io.IOException;
import java.io.InputStream;

/** A stream that fails once it has delivered too many bytes, or at a deadline; a read in progress is not interrupted. */
final class BoundedInputStream extends FilterInputStream {
  private final long maxBytes;
  private final long deadline;
  private long bytes = 0;

  /** {@code deadline} is a value of System.nanoTime(). */
  BoundedInputStream(InputStream in, long maxBytes, long deadline) {
    super(in);
    this.maxBytes = maxBytes;
    this.deadline = deadline;
  }

  public int read() throws IOException {
    int value = in.read();
    count(value < 0 ? 0 : 1);
    return value;
  }

  public int read(byte[] target, int offset, int length) throws IOException {
    int n = in.read(target, offset, length);
    count(Math.max(0, n));
    return n;
  }

  private void count(int n) throws IOException {
    bytes += n;
    if (bytes > maxBytes) throw new IOException("the response has more than " + maxBytes + " bytes");
    if (System.nanoTime() - deadline > 0) throw new IOException("the response took too long");
  }
}
