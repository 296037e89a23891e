package blocklist.spark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.SparkContext;

/**
 * One start of the agent by Python, which creates and calls it through py4j. Texts, because each value would be a
 * round trip.
 */
public final class AgentHandle {
  private final BlocklistAgent agent;
  private boolean released = false;

  /**
   * Start the agent of {@code context}, a SparkContext, or join the running one. {@code options} are lines of a name of
   * Settings, a tab and its value. Throws IOException for an invalid URL.
   */
  public AgentHandle(Object context, String options) throws Exception {
    agent = BlocklistAgent.start((SparkContext) context, Settings.of(parse(options)));
  }

  /**
   * Lines of a name, a tab and a value; the values of `blocked`, `canary` and `refused` are pairs. See BlocklistAgent.status
   * in Python.
   */
  public String status() {
    boolean running;
    synchronized (this) {
      running = !released && !agent.isClosed();
    }
    StringBuilder out = new StringBuilder();
    line(out, "running", String.valueOf(running));
    if (!running) return out.toString();
    Snapshot snapshot = agent.snapshot();
    line(out, "connected", String.valueOf(agent.isConnected()));
    line(out, "registered", String.valueOf(agent.isRegistered()));
    if (snapshot.revision >= 0) line(out, "revision", String.valueOf(snapshot.revision));
    String error = snapshot.failure == null ? agent.lastError() : snapshot.failure;
    if (error != null) line(out, "error", error);
    line(out, "mode", snapshot.mode.text());
    if (snapshot.mode != Mode.APPLY) return out.toString();
    snapshot.plan.covered.forEach((host, block) -> line(out, "blocked", host + "\t" + block.id));
    snapshot.plan.canaries.forEach((host, ids) -> line(out, "canary", host + "\t" + String.join(" ", ids)));
    snapshot.refused.forEach((id, reason) -> line(out, "refused", id + "\t" + reason));
    return out.toString();
  }

  private static void line(StringBuilder out, String name, String value) {
    out.append(name).append('\t').append(value.replace('\n', ' ')).append('\n');
  }

  /** Undo this start; the last one ends the agent. Idempotent. */
  public void release() {
    synchronized (this) {
      if (released) return;
      released = true;
    }
    agent.release();
  }

  private static Map<String, String> parse(String options) {
    Map<String, String> values = new HashMap<>();
    for (String line : options.split("\n")) {
      int tab = line.indexOf('\t');
      if (tab > 0) values.put(line.substring(0, tab), line.substring(tab + 1));
    }
    return values;
  }
}
