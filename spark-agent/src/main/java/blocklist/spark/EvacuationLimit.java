package blocklist.spark;

import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;

/*
 * Leaves a task alone that has been evacuated again and again, and a host that is: a list that flaps must not keep a job
 * from ending. A host whose limit is reached is evacuated later, if it still is to be, when the minute is over.
 *
 * The caller passes the time in milliseconds by a clock that never goes back.
 *
 * MEMORY: MAX_TASKS numbers (the tasks that were evacuated longest ago are forgotten first), and MAX_PER_HOST times for
 * each host that was evacuated in the last minute.
 *
 * THREADING: the caller guards it.
 */
final class EvacuationLimit {
  static final int MAX_PER_TASK = 3;
  static final int MAX_PER_HOST = 3;
  static final long HOST_MILLIS = 60000;
  static final int MAX_TASKS = 50000;
  private static final long NEVER = Long.MIN_VALUE;

  /* Task to how often it was evacuated, the latest last. */
  private final Map<String, Integer> evacuations = new LinkedHashMap<>();
  /* Host to the times at which its evacuations began; the unused ones are NEVER. */
  private final Map<String, long[]> begun = new HashMap<>();
  private Set<String> admitted = new HashSet<>();
  private Set<String> limited = new HashSet<>();

  /* These are all the hosts to evacuate at `now`. An evacuation begins when a host becomes one of them. */
  void update(Collection<String> hosts, long now) {
    Set<String> next = new HashSet<>();
    limited.retainAll(hosts);
    for (String host : hosts) {
      if (admitted.contains(host)) next.add(host);
      else if (begin(host, now)) {
        next.add(host);
        limited.remove(host);
      } else limited.add(host);
    }
    admitted = next;
    forget(now);
  }

  /* Whether this task on a host to evacuate may be killed; if so, that counts. The key of a task is the same for each of
     its attempts: its stage and its number there. */
  boolean take(String task, String host) {
    Integer before = evacuations.get(task);
    int count = before == null ? 0 : before;
    if (!admitted.contains(host) || count >= MAX_PER_TASK) {
      limited.add(host);
      return false;
    }
    evacuations.remove(task);
    evacuations.put(task, count + 1);
    if (evacuations.size() > MAX_TASKS) evacuations.remove(evacuations.keySet().iterator().next());
    return true;
  }

  /* Whether tasks on this host were left alone since it is to be evacuated. */
  boolean isReachedOn(String host) {
    return limited.contains(host);
  }

  private boolean begin(String host, long now) {
    long[] times = begun.get(host);
    if (times == null) {
      times = new long[MAX_PER_HOST];
      Arrays.fill(times, NEVER);
      begun.put(host, times);
    }
    for (int i = 0; i < times.length; i++) {
      if (isOver(times[i], now)) {
        times[i] = now;
        return true;
      }
    }
    return false;
  }

  private void forget(long now) {
    begun.values().removeIf(times -> Arrays.stream(times).allMatch(time -> isOver(time, now)));
  }

  private static boolean isOver(long time, long now) {
    return time == NEVER || now - time >= HOST_MILLIS;
  }
}
