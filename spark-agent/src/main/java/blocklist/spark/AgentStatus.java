package blocklist.spark;

import java.util.Iterator;
import java.util.List;
import java.util.Map;

/** The state of an agent as text: lines of a name, a tab and a value; the values of `blocked`, `canary` and `refused` are pairs. */
final class AgentStatus {
  private AgentStatus() {}

  static String text(BlocklistAgent agent, boolean released) {
    boolean running = !released && !agent.isClosed();
    StringBuilder out = new StringBuilder();
    line(out, "running", String.valueOf(running));
    if (!running) return out.toString();
    Snapshot snapshot = agent.snapshot();
    line(out, "connected", String.valueOf(agent.isConnected()));
    line(out, "registered", String.valueOf(agent.isRegistered()));
    if (snapshot.revision >= 0) line(out, "revision", String.valueOf(snapshot.revision));
    String error = snapshot.failure == null ? agent.lastError() : snapshot.failure;
    if (error != null) line(out, "error", error);
    for (Iterator it = snapshot.plan.covered.values().iterator(); it.hasNext();) {
      HostBlock block = (HostBlock) it.next();
      line(out, "blocked", block.host + "\t" + block.id);
    }
    for (Iterator it = snapshot.plan.canaries.entrySet().iterator(); it.hasNext();) {
      Map.Entry entry = (Map.Entry) it.next();
      line(out, "canary", entry.getKey() + "\t" + String.join(" ", (List) entry.getValue()));
    }
    for (Iterator it = snapshot.refused.entrySet().iterator(); it.hasNext();) {
      Map.Entry entry = (Map.Entry) it.next();
      line(out, "refused", entry.getKey() + "\t" + entry.getValue());
    }
    return out.toString();
  }

  private static void line(StringBuilder out, String name, String value) {
    out.append(name).append('\t').append(value.replace('\n', ' ')).append('\n');
  }
}
