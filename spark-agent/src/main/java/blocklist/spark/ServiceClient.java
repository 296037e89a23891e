package blocklist.spark;

import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.Reader;
import java.net.HttpURLConnection;
import java.net.InetAddress;
import java.net.Proxy;
import java.net.URL;
import java.util.Timer;
import java.util.TimerTask;
import java.util.concurrent.TimeUnit;
import java.util.zip.GZIPInputStream;
import javax.net.ssl.HttpsURLConnection;
import javax.net.ssl.SSLSocketFactory;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Sends requests to the service, one at a time. Whatever the service does, a request ends within its time, and costs
 * bounded memory: a body is read in pieces, and the JDK limits the size of headers.
 *
 * <p>HttpURLConnection, because Java 8 has it and it starts no threads.
 *
 * <p>THREADING: {@code send} is for one thread; {@code close} may be called from any.
 */
final class ServiceClient {
  private static final Logger LOG = LoggerFactory.getLogger("blocklist.spark");
  private static final int CONNECT_MILLIS = 5000;
  private static final int READ_MILLIS = 5000;
  private static final long BODY_MILLIS = 20000;
  private static final long MAX_BODY_BYTES = 16 << 20;

  private final Settings settings;
  private final String userAgent;
  private final Timer timer;
  private final SSLSocketFactory trusted;
  private volatile HttpURLConnection current = null;
  private volatile boolean closed = false;

  /** Throws IOException for an invalid URL or certificate file. Resolves no name: Spark waits, and a name server may hang. {@code timer} ends requests that take too long. */
  ServiceClient(Settings settings, String userAgent, Timer timer) throws IOException {
    this.settings = settings;
    this.userAgent = userAgent;
    this.timer = timer;
    URL url = new URL(settings.url);
    if (!"http".equals(url.getProtocol()) && !"https".equals(url.getProtocol()))
      throw new IOException("spark.blocklist.url is not an http or https URL: " + settings.url);
    boolean own = "https".equals(url.getProtocol()) && settings.caFile.length() > 0;
    trusted = own ? TrustedCertificates.socketFactory(settings.caFile) : null;
  }

  /**
   * Send a request and read the response. {@code body} is JSON or null, {@code etag} the one of the last response or
   * null; the service may delay its response for {@code waitSeconds}. {@code reader} reads the body of a 200; it may
   * be null. Throws IOException if no valid response arrives in time.
   */
  Response send(String method, String path, String body, String etag, int waitSeconds, BodyReader reader) throws IOException {
    URL url = new URL(settings.url + path);
    final HttpURLConnection connection = (HttpURLConnection) (isLoopback(url.getHost()) ? url.openConnection(Proxy.NO_PROXY) : url.openConnection());
    current = connection;
    TimerTask timeout = new TimerTask() {
      public void run() {
        disconnect(connection);
      }
    };
    try {
      if (closed) throw new IOException("the agent has stopped");
      // The timeout of a read starts anew with each byte, so one for the whole head of the response is needed.
      timer.schedule(timeout, CONNECT_MILLIS + READ_MILLIS + 1000L * waitSeconds);
      prepare(connection, method, etag, waitSeconds);
      if (body != null) write(connection, body);
      int status = connection.getResponseCode();
      timeout.cancel();
      return read(connection, status, reader);
    } catch (IOException e) {
      disconnect(connection);
      throw e;
    } catch (RuntimeException e) {
      // HttpURLConnection throws some for responses that are not HTTP.
      disconnect(connection);
      throw new IOException("invalid response: " + e);
    } finally {
      timeout.cancel();
      current = null;
    }
  }

  /** End the current request and refuse further ones. */
  void close() {
    closed = true;
    HttpURLConnection connection = current;
    if (connection != null) disconnect(connection);
  }

  /**
   * In a thread of its own: closing a response waits for a read of its body that is under way, which takes as long as a
   * service that hangs may take. Nothing is thrown, because an exception would end the timer for all later requests.
   */
  private static void disconnect(final HttpURLConnection connection) {
    try {
      Thread thread = new Thread("blocklist-disconnect") {
        public void run() {
          try {
            connection.disconnect();
          } catch (RuntimeException e) {
            LOG.debug("A connection to the service cannot be closed.", e);
          }
        }
      };
      thread.setDaemon(true);
      thread.start();
    } catch (Throwable t) {
      LOG.debug("A connection to the service cannot be closed.", t);
    }
  }

  private void prepare(HttpURLConnection connection, String method, String etag, int waitSeconds) throws IOException {
    if (trusted != null) ((HttpsURLConnection) connection).setSSLSocketFactory(trusted);
    connection.setInstanceFollowRedirects(false);
    connection.setUseCaches(false);
    connection.setConnectTimeout(CONNECT_MILLIS);
    connection.setReadTimeout(READ_MILLIS + 1000 * waitSeconds);
    connection.setRequestMethod(method);
    connection.setRequestProperty("User-Agent", userAgent);
    connection.setRequestProperty("Accept", "*/*");
    connection.setRequestProperty("Accept-Encoding", "gzip");
    String token = settings.currentToken();
    if (token.length() > 0) connection.setRequestProperty("Authorization", "Bearer " + token);
    if (waitSeconds > 0) connection.setRequestProperty("Prefer", "wait=" + waitSeconds);
    if (etag != null) connection.setRequestProperty("If-None-Match", etag);
  }

  private static void write(HttpURLConnection connection, String body) throws IOException {
    connection.setDoOutput(true);
    connection.setRequestProperty("Content-Type", "application/json");
    OutputStream out = connection.getOutputStream();
    out.write(body.getBytes("UTF-8"));
    out.close();
  }

  private static Response read(HttpURLConnection connection, int status, BodyReader reader) throws IOException {
    if (status < 0) throw new IOException("the response is not HTTP");
    InputStream stream = status < 400 ? connection.getInputStream() : connection.getErrorStream();
    Object found = null;
    if (stream != null) {
      long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(BODY_MILLIS);
      InputStream in = new BoundedInputStream(stream, MAX_BODY_BYTES, deadline);
      if ("gzip".equalsIgnoreCase(connection.getContentEncoding())) in = new BoundedInputStream(new GZIPInputStream(in), MAX_BODY_BYTES, deadline);
      if (status == 200 && reader != null) found = reader.read(new InputStreamReader(in, "UTF-8"));
      // To its end, so that the connection can be used again.
      byte[] rest = new byte[8192];
      while (in.read(rest, 0, rest.length) >= 0) { }
      in.close();
    }
    String history = connection.getHeaderField("Blocklist-History");
    return new Response(status, connection.getHeaderField("ETag"), history, connection.getHeaderFieldLong("Retry-After", 0), connection.getDate(), found);
  }

  private static boolean isLoopback(String host) {
    try {
      return InetAddress.getByName(host).isLoopbackAddress();
    } catch (IOException e) {
      return false;
    }
  }
}
