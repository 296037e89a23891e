package blocklist.spark;

import java.io.FileInputStream;
import java.io.FilterInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.Reader;
import java.net.HttpURLConnection;
import java.net.InetAddress;
import java.net.Proxy;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.util.Timer;
import java.util.TimerTask;
import java.util.concurrent.TimeUnit;
import java.util.zip.GZIPInputStream;
import javax.net.ssl.HttpsURLConnection;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLException;
import javax.net.ssl.SSLSocketFactory;
import javax.net.ssl.TrustManagerFactory;
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
  private static final Logger LOG = LoggerFactory.getLogger("blocklist");
  private static final int CONNECT_MILLIS = 5000;
  private static final int READ_MILLIS = 5000;
  private static final long BODY_MILLIS = 20000;
  private static final long MAX_BODY_BYTES = 16 << 20;

  /** Reads the body of a response. Throws IOException if it is not what was expected. */
  interface BodyReader<T> {
    T read(Reader text) throws IOException;
  }

  /** A response of the service. */
  static final class Response<T> {
    /**
     * The longest wait that the agent accepts, in seconds. It is what it waits at most between its own attempts, and with
     * the interval of heartbeats it is less than a lease of 50 s: who obeys for longer is removed, and has an old list
     * meanwhile.
     */
    static final long MAX_RETRY_AFTER = 30;

    final int status;
    /** To be returned in If-None-Match; null without one. */
    final String etag;
    /** Eight hexadecimal digits that identify the log of changes; empty without them. */
    final String history;
    /** Seconds to wait before the next request, 0 to MAX_RETRY_AFTER. */
    final long retryAfter;
    /** Its Date, in Unix milliseconds; 0 without one. */
    final long date;
    /** What the BodyReader has returned; null for a status other than 200. */
    final T body;

    Response(int status, String etag, String history, long retryAfter, long date, T body) {
      this.status = status;
      this.etag = etag;
      this.history = history != null && history.matches("[0-9a-f]{8}") ? history : "";
      this.retryAfter = Math.min(MAX_RETRY_AFTER, Math.max(0, retryAfter));
      this.date = date;
      this.body = body;
    }
  }

  /** The service has refused a request. */
  static final class HttpException extends IOException {
    private static final long serialVersionUID = 1;
    /** Seconds to wait before the next request. */
    final long retryAfter;

    HttpException(String what, Response<?> response) {
      super("HTTP " + response.status + " to " + what);
      retryAfter = response.retryAfter;
    }
  }

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
    trusted = own ? trusting(settings.caFile) : null;
  }

  /** What the service calls the cluster; empty: that of the nodes where the application runs. */
  String cluster() {
    return settings.cluster;
  }

  /**
   * Send a request and read the response. {@code body} is JSON or null, {@code etag} the one of the last response or
   * null; the service may delay its response for {@code waitSeconds}. {@code reader} reads the body of a 200; it may
   * be null. Throws IOException if no valid response arrives in time.
   */
  <T> Response<T> send(String method, String path, String body, String etag, int waitSeconds, BodyReader<T> reader) throws IOException {
    URL url = new URL(settings.url + path);
    HttpURLConnection connection = (HttpURLConnection) (isLoopback(url.getHost()) ? url.openConnection(Proxy.NO_PROXY) : url.openConnection());
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
      throw isUntrusted(e) ? new IOException(untrusted(e), e) : e;
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
    interrupt();
  }

  /** End the current request, if there is one. */
  void interrupt() {
    HttpURLConnection connection = current;
    if (connection != null) disconnect(connection);
  }

  /**
   * In a thread of its own: closing a response waits for a read of its body that is under way, which takes as long as a
   * service that hangs may take. Nothing is thrown, because an exception would end the timer for all later requests.
   */
  private static void disconnect(HttpURLConnection connection) {
    try {
      Thread thread = new Thread(() -> {
        try {
          connection.disconnect();
        } catch (Throwable t) {
          LOG.debug("A connection to the service cannot be closed.", t);
        }
      }, "blocklist-disconnect");
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
    try (OutputStream out = connection.getOutputStream()) {
      out.write(body.getBytes(StandardCharsets.UTF_8));
    }
  }

  private static <T> Response<T> read(HttpURLConnection connection, int status, BodyReader<T> reader) throws IOException {
    if (status < 0) throw new IOException("the response is not HTTP");
    InputStream stream = status < 400 ? connection.getInputStream() : connection.getErrorStream();
    T found = null;
    if (stream != null) {
      long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(BODY_MILLIS);
      InputStream in = new BoundedInputStream(stream, MAX_BODY_BYTES, deadline);
      if ("gzip".equalsIgnoreCase(connection.getContentEncoding())) in = new BoundedInputStream(new GZIPInputStream(in), MAX_BODY_BYTES, deadline);
      if (status == 200 && reader != null) found = reader.read(new InputStreamReader(in, StandardCharsets.UTF_8));
      // To its end, so that the connection can be used again.
      byte[] rest = new byte[8192];
      while (in.read(rest, 0, rest.length) >= 0) { }
      in.close();
    }
    String history = connection.getHeaderField("Blocklist-History");
    return new Response<>(status, connection.getHeaderField("ETag"), history, connection.getHeaderFieldLong("Retry-After", 0), connection.getDate(), found);
  }

  private static boolean isLoopback(String host) {
    try {
      return InetAddress.getByName(host).isLoopbackAddress();
    } catch (IOException e) {
      return false;
    }
  }

  /** Trusts the certificates of a PEM file alone. Throws IOException, with the file's name, if it has no valid ones. */
  private static SSLSocketFactory trusting(String file) throws IOException {
    try (InputStream in = new FileInputStream(file)) {
      KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
      store.load(null, null);
      for (Certificate each : CertificateFactory.getInstance("X.509").generateCertificates(in)) store.setCertificateEntry("ca" + store.size(), each);
      TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
      managers.init(store);
      SSLContext context = SSLContext.getInstance("TLS");
      context.init(null, managers.getTrustManagers(), null);
      return context.getSocketFactory();
    } catch (GeneralSecurityException e) {
      throw new IOException("spark.blocklist.caFile " + file + " has no valid certificates: " + e.getMessage());
    }
  }

  /** Whether no known authority has signed the certificate. A certificate for another name has no such second cause. */
  private static boolean isUntrusted(IOException e) {
    return e instanceof SSLException && e.getCause() instanceof CertificateException && e.getCause().getCause() != null;
  }

  private String untrusted(IOException e) {
    String what = trusted == null ? "If the service has an authority of your own, give the file of it as spark.blocklist.caFile" : "spark.blocklist.caFile " + settings.caFile + " is not of its authority";
    return "the certificate of " + settings.url + " is not trusted: " + e.getMessage() + ". " + what;
  }

  /** A stream that fails once it has delivered too many bytes, or at a deadline; a read in progress is not interrupted. */
  private static final class BoundedInputStream extends FilterInputStream {
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
}
