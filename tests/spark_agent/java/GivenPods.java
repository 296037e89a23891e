package blocklist.spark;

import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;

/* The pods of a driver: `next` replaces those that are seen as soon as `made` is asked. */
final class GivenPods implements ExecutorPods {
  private final Object client;
  Map<Long, ExecutorPods.Pod> seen = new HashMap<>();
  Map<Long, ExecutorPods.Pod> next = new HashMap<>();

  GivenPods(Object client) {
    this.client = client;
  }

  public Object client() {
    return client;
  }

  public String unsteerable() {
    return null;
  }

  public Map<Long, ExecutorPods.Pod> pods() {
    return seen;
  }

  public ExecutorPods.Made made() {
    seen = next;
    long last = 0;
    for (Long each : next.keySet()) last = Math.max(last, each.longValue());
    return new ExecutorPods.Made(last, new HashSet<>());
  }
}
