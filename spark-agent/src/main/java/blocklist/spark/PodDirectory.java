package blocklist.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.scheduler.TaskSchedulerImpl;

/**
 * The hosts of an application on Kubernetes: each is a pod, named by its address, and what Spark knows of the pod says on
 * which node it is. A pod never moves. An executor is found by its number, because pods may share an address, and because an
 * address is used again: a host is the pod of its newest executor.
 *
 * <p>Memory: the executors, the live hosts, and the nodes of the last MAX_GONE others, whose evidence is still to be
 * reported.
 */
final class PodDirectory implements HostDirectory {
  /** Longer than Spark's interval of polling pods, should it miss an event. */
  static final long HOLD_MILLIS = 60000;
  private static final int MAX_GONE = 10000;

  private static final class Place {
    final long executor;
    final String node;
    final String[] machineNames;
    final String[] names;

    Place(ExecutorPods.Pod pod) {
      executor = pod.id;
      node = pod.node;
      List<String> known = new ArrayList<>(Arrays.asList(pod.nodeAddresses));
      known.add(HostNames.normalize(node));
      machineNames = known.toArray(new String[0]);
      known.addAll(Arrays.asList(pod.addresses));
      names = known.toArray(new String[0]);
    }
  }

  private final ExecutorPods backend;
  private final TaskSchedulerImpl scheduler;
  /** Executor to its Place. */
  private final Map<String, Place> executors = new ConcurrentHashMap<>();
  /** Host to its Place, and host to the time since when it is looked for. */
  private final Map<String, Place> places = new ConcurrentHashMap<>();
  private final Map<String, Long> missing = new ConcurrentHashMap<>();
  private final Map<String, String> gone = Collections.synchronizedMap(new LinkedHashMap<>());
  private Map<Long, ExecutorPods.Pod> seen = null;
  private long version = 0;

  PodDirectory(ExecutorPods backend, TaskSchedulerImpl scheduler) {
    this.backend = backend;
    this.scheduler = scheduler;
  }

  public String[] names(String host) {
    Place place = places.get(host);
    return place == null ? null : place.names;
  }

  public String[] machineNames(String host) {
    Place place = places.get(host);
    return place == null ? null : place.machineNames;
  }

  public String node(String host) {
    Place place = places.get(host);
    return place == null ? null : place.node;
  }

  public String lastNode(String host) {
    String node = node(host);
    return node == null ? gone.get(host) : node;
  }

  public String executorNode(String executor, String host) {
    Place place = executors.get(executor);
    return place == null ? null : place.node;
  }

  public String[] executorNames(String executor, String host) {
    Place place = executors.get(executor);
    return place == null ? null : place.names;
  }

  public long overdue(String host) {
    long age = missingMillis(host);
    return age < HOLD_MILLIS - NOTICE_MILLIS ? 0 : age;
  }

  public boolean isPending(String host) {
    return !places.containsKey(host) && missingMillis(host) < HOLD_MILLIS;
  }

  private long missingMillis(String host) {
    Long since = missing.get(host);
    return since == null ? 0 : Times.monotonic() - since;
  }

  public String overdueReason() {
    return "whose node the driver has not learnt from Kubernetes";
  }

  public boolean namesMachines() {
    return false;
  }

  public long holdMillis() {
    return HOLD_MILLIS;
  }

  /** Changes with the pods while a host is missing: its names cannot become known otherwise. */
  public synchronized long version() {
    if (missing.isEmpty()) return version;
    try {
      Map<Long, ExecutorPods.Pod> pods = backend.pods();
      if (pods != seen) version++;
      seen = pods;
    } catch (Exception e) {
      version++;
    }
    return version;
  }

  public void retain(Collection<String> hosts) {
    Map<String, Long> newest = readExecutors();
    places.entrySet().removeIf(place -> {
      if (isStillAt(place.getValue(), place.getKey(), hosts, newest)) return false;
      remember(place.getKey(), place.getValue().node);
      return true;
    });
    missing.keySet().retainAll(hosts);
    for (String host : hosts) {
      Place place = newest.containsKey(host) ? executors.get(String.valueOf(newest.get(host))) : null;
      if (place != null) places.put(host, place);
      if (places.containsKey(host)) missing.remove(host);
      else missing.putIfAbsent(host, Times.monotonic());
    }
  }

  /** Another pod may have the address now, whose node is not known yet. */
  private static boolean isStillAt(Place place, String host, Collection<String> hosts, Map<String, Long> newest) {
    Long now = newest.get(host);
    return hosts.contains(host) && (now == null || now <= place.executor);
  }

  /**
   * Updates the places of the executors. A pod that Spark has forgotten before its executor was where it was. Returns each
   * host with the number of its newest executor.
   */
  private Map<String, Long> readExecutors() {
    Map<String, Long> newest = new HashMap<>();
    Set<String> listed = new HashSet<>();
    Map<Long, ExecutorPods.Pod> pods;
    try {
      pods = backend.pods();
    } catch (Exception e) {
      throw new IllegalStateException("the pods of this application cannot be read: " + e, e);
    }
    for (scala.Tuple2<String, String> executor : Scala.each(scheduler.executorIdToHost().iterator())) {
      Long id = number(executor._1());
      listed.add(executor._1());
      ExecutorPods.Pod pod = id == null ? null : pods.get(id);
      if (pod != null && pod.node != null) executors.put(executor._1(), new Place(pod));
      if (id != null) newest.merge(executor._2(), id, Math::max);
    }
    executors.keySet().retainAll(listed);
    return newest;
  }

  private static Long number(String executor) {
    try {
      return Long.valueOf(executor);
    } catch (NumberFormatException e) {
      return null;
    }
  }

  private void remember(String host, String node) {
    synchronized (gone) {
      gone.remove(host);
      gone.put(host, node);
      if (gone.size() > MAX_GONE) gone.remove(gone.keySet().iterator().next());
    }
  }
}
