package blocklist.spark;

import java.io.IOException;
import java.io.Reader;
import java.net.ConnectException;
import java.net.UnknownHostException;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Supplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Registers the application as a listener of the service, and sends heartbeats: what has changed within a second, and
 * everything every 10 s, because a restarted service has lost it.
 *
 * <p>If a heartbeat is rejected because another session is registered, this one registers again: a service that was
 * restored may have brought back a session that has ended, and only a session that was taken over may not register. Such
 * a one waits until the other has left the service. It does not register before, as it could displace its successor.
 *
 * <p>The service never takes an acknowledgement back, except for the blocks that are refused. So when refusals cannot be
 * reported, because they are too many or the service rejects the report, a new session begins, which has acknowledged
 * nothing.
 */
final class ReportLoop extends Loop {
  private static final Logger LOG = LoggerFactory.getLogger("blocklist");
  private static final long INTERVAL = 10000;
  private static final long FENCED_INTERVAL = 30000;
  private static final long NODES_INTERVAL = 300000;
  private static final long TICK = 1000;
  private static final long LEAVE_MILLIS = 2000;
  private static final int DEREGISTRATIONS = 3;
  private static final int MAX_CHARS = 65536;
  private static final String NODES = "nodes";
  private static final String REFUSED = "refused";
  private static final String MODE = "mode";
  private static final Pattern WANTED = Pattern.compile("\"mode\" *: *\"([a-z]+)\"");

  private final ReportSource agent;
  private final String path;
  private final String firstSession;
  private final Supplier<Map<String, String>> software;
  private final ServiceClient client;
  private String session;
  private int withdrawals = 0;
  /** Whether the service counts blocks as applied in this session. */
  private boolean acknowledged = false;
  private volatile boolean registered = false;
  private boolean fenced = false;
  /** Whether the service may list this session: it may have received a request whose response was lost. */
  private boolean known = false;
  private int registeredMinNodes = 0;
  private Map<String, String> registeredSoftware = new HashMap<>();
  private Map<String, String> sent = new HashMap<>();
  private String sentAck = "";
  private long nextFull = 0;
  private long nextNodes = 0;

  /** {@code software}: the fields of a registration that say what this agent is, as JSON. */
  ReportLoop(ServiceClient client, ReportSource agent, String application, String session, Supplier<Map<String, String>> software) {
    super("blocklist-report", "send heartbeats");
    this.client = client;
    this.agent = agent;
    this.path = "/listeners/" + application;
    this.firstSession = session;
    this.session = session;
    this.software = software;
  }

  boolean isRegistered() {
    return registered;
  }

  long runOnce() throws Exception {
    if (fenced && !hasOtherLeft()) return FENCED_INTERVAL;
    int minNodes = agent.minNodes();
    Map<String, String> present = software.get();
    if (!registered || minNodes != registeredMinNodes || !present.equals(registeredSoftware)) register(minNodes, present);
    if (fenced) return FENCED_INTERVAL;
    Snapshot snapshot = agent.snapshot();
    if (Report.isCutOff(snapshot) && acknowledged) {
      withdraw("more than " + Report.MAX_REFUSED + " blocks are refused");
      return 0;
    }
    Map<String, String> fields = agent.report(snapshot);
    String ack = agent.acknowledgement(snapshot);
    long now = Times.monotonic();
    Map<String, String> due = due(fields, now);
    if (now < nextFull && due.isEmpty() && ack.equals(sentAck)) {
      agent.onReported(snapshot);
      return TICK;
    }
    // An acknowledgement without the refusals would say more than is so, if the service has lost them.
    if (ack.length() > 0) due.put(REFUSED, fields.get(REFUSED));
    // Nor without the mode: in any but one it counts nowhere.
    due.put(MODE, fields.get(MODE));
    String response = heartbeat(ack, due);
    if (response == null) return TICK;
    Matcher wanted = WANTED.matcher(response);
    agent.onMode(wanted.find() ? Mode.of(wanted.group(1)) : null);
    agent.onReported(snapshot);
    if (now >= nextFull) nextFull = now + INTERVAL;
    sentAck = ack;
    sent.putAll(due);
    if (due.containsKey(NODES)) nextNodes = now + NODES_INTERVAL;
    // A restarted service has lost the nodes.
    else if (sent.containsKey(NODES) && response.indexOf("\"nodes\"") < 0) sent.remove(NODES);
    return TICK;
  }

  /** What to send: everything at each interval, in between what has changed; the nodes, which may be thousands, rarely. */
  private Map<String, String> due(Map<String, String> fields, long now) {
    Map<String, String> due = new TreeMap<>();
    fields.forEach((name, value) -> {
      if (!value.equals(sent.get(name)) || now >= (NODES.equals(name) ? nextNodes : nextFull)) due.put(name, value);
    });
    return due;
  }

  private void register(int minNodes, Map<String, String> present) throws IOException {
    Map<String, String> body = new TreeMap<>(present);
    body.put("role", "\"JOB_MASTER\"");
    body.put("sessionId", Json.text(session));
    if (minNodes > 0) body.put("minNodes", String.valueOf(minNodes));
    if (agent.mode() != Mode.APPLY) body.put(MODE, Json.text(agent.mode().text()));
    if (client.cluster().length() > 0) body.put("cluster", Json.text(client.cluster()));
    boolean before = known;
    known = true;
    ServiceClient.Response<?> response;
    try {
      response = client.send("PUT", path, Json.object(body), null, 0, null);
    } catch (ConnectException | UnknownHostException e) {
      // It has received nothing: the end of the application need not wait for it.
      known = before;
      throw e;
    }
    if (response.status == 409) {
      fence();
      return;
    }
    if (response.status / 100 != 2) throw new ServiceClient.HttpException("PUT " + path, response);
    if (fenced) LOG.info("The other session of this application has ended; this one reports again.");
    fenced = false;
    registered = true;
    registeredMinNodes = minNodes;
    registeredSoftware = present;
    nextFull = 0;
    nextNodes = 0;
  }

  /** Null if another session is registered: this one must register again. */
  private String heartbeat(String ack, Map<String, String> fields) throws IOException {
    boolean before = acknowledged;
    // Also if the response is lost.
    acknowledged |= ack.length() > 0;
    ServiceClient.Response<String> response = send(ack, fields);
    if (isRejected(response) && !fields.isEmpty()) {
      acknowledged = before;
      renewWithout(fields);
      throw new ServiceClient.HttpException("a report", response);
    }
    if (response.status == 404 || response.status == 409) registered = false;
    if (response.status == 409) return null;
    if (response.status != 200) throw new ServiceClient.HttpException("a heartbeat", response);
    return response.body;
  }

  /** A report that is rejected must not stop the renewal of the lease. Without the refusals nothing is acknowledged. */
  private void renewWithout(Map<String, String> fields) throws IOException {
    Map<String, String> mode = new TreeMap<>(fields);
    mode.keySet().retainAll(Collections.singleton(MODE));
    Map<String, String> refused = new TreeMap<>(fields);
    refused.keySet().retainAll(Arrays.asList(MODE, REFUSED));
    boolean refuses = refused.containsKey(REFUSED);
    if (refuses && !isRejected(send("", refused))) return;
    if (refuses && acknowledged) withdraw("the service rejects the report");
    else send("", mode);
  }

  /** 413: this report, or all reports of the token, are too large. */
  private static boolean isRejected(ServiceClient.Response<?> response) {
    return response.status == 400 || response.status == 413;
  }

  /** Begin a new session, which takes over from this one. */
  private void withdraw(String why) {
    LOG.warn("No block counts as applied for now: {}.", why);
    session = firstSession + "." + ++withdrawals;
    acknowledged = false;
    registered = false;
    sentAck = "";
  }

  private ServiceClient.Response<String> send(String ack, Map<String, String> fields) throws IOException {
    String report = Json.object(fields);
    String body = "{\"sessionId\":" + Json.text(session) + ack + (fields.isEmpty() ? "}" : "," + report.substring(1));
    return client.send("POST", path + "/heartbeat", body, null, 0, ReportLoop::text);
  }

  private static String text(Reader body) throws IOException {
    char[] chars = new char[MAX_CHARS];
    int length = 0;
    for (int n = body.read(chars, 0, MAX_CHARS); n > 0; n = body.read(chars, length, MAX_CHARS - length)) length += n;
    return new String(chars, 0, length);
  }

  /** Whether the session that has taken over is no longer listed: none is, or, after a restore of the service, this one. */
  private boolean hasOtherLeft() throws IOException {
    int status = send("", new TreeMap<>()).status;
    return status == 404 || status == 200;
  }

  private void fence() {
    if (!fenced)
      LOG.warn("Another session of this application has registered; this one goes on obeying, but does not report until that one has ended.");
    fenced = true;
    registered = false;
    agent.onMode(null);
    known = false;
  }

  void onFailure() {
    // Whatever was lost, registering recovers it; if nothing was, it is a renewal.
    registered = false;
    agent.onMode(null);
  }

  void onEnd() {
    registered = false;
    try {
      if (known) deregister();
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    } finally {
      agent.onDeregistered();
    }
  }

  /** Tried several times: a service that never hears of the end lists this application as lapsed. */
  private void deregister() throws InterruptedException {
    for (int attempt = 1;; attempt++) {
      try {
        sendDelete();
        return;
      } catch (Exception e) {
        if (attempt == DEREGISTRATIONS) {
          LOG.warn("The agent could not deregister; if the service knows this application, it will list it as lapsed: {}", e.getMessage());
          return;
        }
        Thread.sleep(TICK);
      }
    }
  }

  private void sendDelete() throws IOException {
    ServiceClient.Response<?> response = client.send("DELETE", path + "?sessionId=" + session, null, null, 0, null);
    // 404: the service has lost it. 409: it is another session's.
    if (response.status / 100 != 2 && response.status != 404 && response.status != 409) throw new ServiceClient.HttpException("DELETE " + path, response);
  }

  /** Ends the loop and deregisters, after a request that is under way; returns after LEAVE_MILLIS at the latest. */
  void close() {
    super.close();
    try {
      join(LEAVE_MILLIS);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }
}
