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

  /** Lines of a name, tabs and values; see BlocklistAgent.status in Python. */
  public String status() {
    return AgentStatus.text(agent, isReleased());
  }

  /** Undo this start; the last one ends the agent. Idempotent. */
  public void release() {
    synchronized (this) {
      if (released) return;
      released = true;
    }
    agent.release();
  }

  private boolean isReleased() {
    synchronized (this) {
      return released;
    }
  }

  private static Map parse(String options) {
    Map values = new HashMap();
    String[] lines = options.split("\n");
    for (int i = 0; i < lines.length; i++) {
      int tab = lines[i].indexOf('\t');
      if (tab > 0) values.put(lines[i].substring(0, tab), lines[i].substring(tab + 1));
    }
    return values;
  }
}
