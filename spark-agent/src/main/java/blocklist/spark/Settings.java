package blocklist.spark;

import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.spark.SparkConf;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The settings of an agent: {@code spark.blocklist.*} of the application's configuration, or what Python passes. A value
 * that is invalid is reported, and the default is used: an application must not disobey because of a slip.
 *
 * <p>No setting of Spark holds a token, because Spark sends its settings to the executors.
 */
final class Settings {
  private static final Logger LOG = LoggerFactory.getLogger("blocklist");
  private static final String PREFIX = "spark.blocklist.";
  private static final List<String> NAMES = Arrays.asList(
    "url", "tokenFile", "caFile", "keepHosts", "minNodes", "reportEvidence", "reportNodes", "podAffinity", "startWait", "cluster", "mode");
  private static final Pattern CLUSTER = Pattern.compile("[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?");
  private static final int MAX_TOKEN_BYTES = 8192;

  /** URL of the service without a final slash; empty: no agent. */
  final String url;
  /** A file with PEM certificates to trust instead of the JVM's; empty: the JVM's. */
  final String caFile;
  /** Minimum number of hosts with a live executor that the agent never blocks, at least 1. */
  final int keepHosts;
  /** The service refuses blocks that leave fewer usable hosts; 0: no minimum. */
  final int minNodes;
  final boolean reportEvidence;
  final boolean reportNodes;
  /** On Kubernetes: keep new executors' pods off blocked nodes by a node affinity. */
  final boolean podAffinity;
  /** What the service calls the cluster that the application runs on; empty: that of the nodes where it runs. */
  final String cluster;
  /** Maximum time in milliseconds for which a start waits for the first table. */
  final long startWait;
  /** The mode that the agent starts with; the service may want one that does less. */
  final Mode mode;
  private final String tokenFile;
  private final String token;

  private Settings(Map<String, String> values) {
    String given = text(values, "url").trim();
    if (given.indexOf('@') >= 0) {
      LOG.warn(PREFIX + "url has a user name or a password in it, which the service does not use: leave them out. A token is given in " + PREFIX + "tokenFile.");
      given = "";
    }
    while (given.endsWith("/")) given = given.substring(0, given.length() - 1);
    url = given;
    tokenFile = text(values, "tokenFile");
    token = text(values, "token").trim();
    caFile = text(values, "caFile");
    keepHosts = Math.max(1, integer(values, "keepHosts", 1));
    minNodes = Math.max(0, integer(values, "minNodes", 0));
    reportEvidence = bool(values, "reportEvidence", false);
    reportNodes = bool(values, "reportNodes", false);
    podAffinity = bool(values, "podAffinity", true);
    cluster = label(text(values, "cluster").trim());
    mode = mode(values);
    startWait = (long) (1000 * seconds(values, "startWait", 2));
  }

  /**
   * The settings in a configuration; {@code BLOCKLIST_URL}, {@code BLOCKLIST_TOKEN_FILE}, {@code BLOCKLIST_TOKEN} and
   * {@code SSL_CERT_FILE} of the driver's environment replace absent ones. Names that are no setting are reported.
   */
  static Settings of(SparkConf conf) {
    Map<String, String> values = new HashMap<>();
    for (String name : NAMES) {
      values.put(name, conf.get(PREFIX + name, ""));
    }
    for (scala.Tuple2<String, String> given : conf.getAllWithPrefix(PREFIX))
      if (!NAMES.contains(given._1())) LOG.warn(PREFIX + given._1() + " is not a setting; there are " + NAMES + ".");
    useEnvironment(values, "url", "BLOCKLIST_URL");
    useEnvironment(values, "tokenFile", "BLOCKLIST_TOKEN_FILE");
    useEnvironment(values, "token", "BLOCKLIST_TOKEN");
    useEnvironment(values, "caFile", "SSL_CERT_FILE");
    return new Settings(values);
  }

  /** The settings in a map from names without prefix to texts; nothing is read from the environment. */
  static Settings of(Map<String, String> values) {
    return new Settings(values);
  }

  /** The token, read again for each request, because tokens are replaced while applications run; empty without one. */
  String currentToken() throws IOException {
    if (tokenFile.length() == 0) return checked(token, "The token");
    byte[] bytes = new byte[MAX_TOKEN_BYTES];
    int length = 0;
    try (InputStream in = new FileInputStream(tokenFile)) {
      for (int n = in.read(bytes, 0, bytes.length); n > 0; n = in.read(bytes, length, bytes.length - length)) length += n;
    }
    return checked(new String(bytes, 0, length, StandardCharsets.UTF_8).trim(), "The token in " + tokenFile);
  }

  /** HttpURLConnection would show a malformed one in its error. */
  private static String checked(String token, String what) throws IOException {
    for (int i = 0; i < token.length(); i++)
      if (token.charAt(i) <= ' ' || token.charAt(i) > '~') throw new IOException(what + " is malformed: use only printable ASCII characters.");
    return token;
  }

  private static void useEnvironment(Map<String, String> values, String name, String variable) {
    String value = System.getenv(variable);
    if (text(values, name).length() == 0 && value != null) values.put(name, value);
  }

  private static String text(Map<String, String> values, String name) {
    return values.getOrDefault(name, "");
  }

  /** The name, if the service takes it; else none, because a registration that is refused would leave all hosts open. */
  private static String label(String name) {
    if (name.length() == 0 || CLUSTER.matcher(name).matches()) return name;
    warn("cluster", "at most 63 letters, digits, -, _ and . that begin and end with a letter or digit", name, "the cluster of its nodes");
    return "";
  }

  private static Mode mode(Map<String, String> values) {
    String text = text(values, "mode").trim();
    Mode found = Mode.of(text);
    if (found == null && text.length() > 0) warn("mode", "apply, observe or off", text, Mode.OBSERVE.text());
    // A slip in what was meant to do less must not do more.
    return found != null ? found : text.length() > 0 ? Mode.OBSERVE : Mode.APPLY;
  }

  private static boolean bool(Map<String, String> values, String name, boolean absent) {
    String text = text(values, name).trim();
    if ("true".equalsIgnoreCase(text) || "false".equalsIgnoreCase(text)) return "true".equalsIgnoreCase(text);
    if (text.length() > 0) warn(name, "true or false", text, String.valueOf(absent));
    return absent;
  }

  private static int integer(Map<String, String> values, String name, int absent) {
    String text = text(values, name).trim();
    try {
      return text.length() == 0 ? absent : Integer.parseInt(text);
    } catch (NumberFormatException e) {
      warn(name, "an integer", text, String.valueOf(absent));
      return absent;
    }
  }

  private static void warn(String name, String expected, String given, String used) {
    LOG.warn(PREFIX + name + " is not " + expected + ": " + given + ". The agent uses " + used + ".");
  }

  private static double seconds(Map<String, String> values, String name, double absent) {
    String text = text(values, name).trim();
    if (text.endsWith("s")) text = text.substring(0, text.length() - 1);
    try {
      return text.length() == 0 ? absent : Math.max(0, Math.min(60, Double.parseDouble(text)));
    } catch (NumberFormatException e) {
      warn(name, "a number of seconds", text, String.valueOf(absent));
      return absent;
    }
  }
}
