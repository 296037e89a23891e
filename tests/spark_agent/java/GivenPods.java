package blocklist.spark;

import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Map;

/* The pods of a driver: `next` replaces those that are seen as soon as `made` is asked. */
final class GivenPods implements ExecutorPods {
  private final Object client;
  Map seen = new HashMap();
  Map next = new HashMap();

  GivenPods(Object client) {
    this.client = client;
  }

  public Object client() {
    return client;
  }

  public String unsteerable() {
    return null;
  }

  public Map pods() {
    return seen;
  }

  public MadePods made() {
    seen = next;
    long last = 0;
    for (Iterator it = next.keySet().iterator(); it.hasNext();) last = Math.max(last, ((Long) it.next()).longValue());
    return new MadePods(last, new HashSet());
  }
}
