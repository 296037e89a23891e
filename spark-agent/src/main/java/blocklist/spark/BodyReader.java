package blocklist.spark;

import java.io.IOException;
import java.io.Reader;

/** Reads the body of a response. */
interface BodyReader {
  /** Returns what the body says; a null is allowed. Throws IOException if it is not what was expected. */
  Object read(Reader text) throws IOException;
}
