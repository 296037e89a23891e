package blocklist.spark;

import java.lang.reflect.Field;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.ReentrantLock;
import org.apache.spark.SparkContext;

/**
 * Spark's backend for Kubernetes: the executors' pods as Spark itself knows them, and the part that makes new ones. It is
 * read by reflection, without a request to the API server.
 */
final class KubernetesBackend implements ExecutorPods {
  private static final String NAME = "org.apache.spark.scheduler.cluster.k8s.KubernetesClusterSchedulerBackend";
  private static final String ALLOCATOR = "org.apache.spark.scheduler.cluster.k8s.ExecutorPodsAllocator";

  private final Object client;
  private final Object store;
  private final Field snapshot;
  private final Collection<?> subscribers;
  private final Object allocator;
  private final AtomicInteger lastId;
  private final Object newPods;
  private Object seen = null;
  private Map<Long, ExecutorPods.Pod> pods = new HashMap<>();

  static boolean isUsedBy(SparkContext sc) {
    return NAME.equals(sc.schedulerBackend().getClass().getName());
  }

  /** Throws an exception if this Spark keeps its pods in another way. */
  KubernetesBackend(SparkContext sc) throws Exception {
    Object backend = sc.schedulerBackend();
    client = value(backend, "kubernetesClient");
    store = value(backend, "snapshotsStore");
    snapshot = field(store, "currentSnapshot");
    subscribers = (Collection<?>) value(store, "subscribers");
    allocator = value(backend, "podAllocator");
    boolean known = ALLOCATOR.equals(allocator.getClass().getName());
    lastId = known ? (AtomicInteger) value(allocator, "EXECUTOR_ID_COUNTER") : null;
    newPods = known ? value(allocator, "newlyCreatedExecutors") : null;
    pods();
  }

  public String unsteerable() {
    return lastId != null ? null : "the agent does not know how " + allocator.getClass().getName() + " makes pods";
  }

  public Object client() {
    return client;
  }

  public synchronized Map<Long, ExecutorPods.Pod> pods() throws Exception {
    Object present = snapshot.get(store);
    if (present == seen) return pods;
    Map<Long, ExecutorPods.Pod> read = new HashMap<>();
    for (scala.Tuple2<?, ?> entry : entries(Scala.call(present, "executorPods"))) {
      Long id = (Long) entry._1();
      read.put(id, PodReader.read(id, Scala.call(entry._2(), "pod")));
    }
    pods = Collections.unmodifiableMap(read);
    seen = present;
    return pods;
  }

  /**
   * Spark makes pods in rounds, and holds a lock meanwhile: after a change of the template, pods of a later number obey it,
   * once this has not returned null.
   */
  public ExecutorPods.Made made() throws Exception {
    Set<ReentrantLock> held = new HashSet<>();
    try {
      for (Object subscriber : subscribers) {
        ReentrantLock lock = (ReentrantLock) value(subscriber, "lock");
        // Spark does not wait for the lock either: it comes back a moment later.
        if (!lock.tryLock()) return null;
        held.add(lock);
      }
      Set<Long> unseen = new HashSet<>();
      for (scala.Tuple2<?, ?> pod : entries(newPods)) unseen.add((Long) pod._1());
      return new ExecutorPods.Made(lastId.get(), unseen);
    } finally {
      for (ReentrantLock each : held) each.unlock();
    }
  }

  /** Of a map of Scala. */
  @SuppressWarnings("unchecked")
  private static Iterable<scala.Tuple2<?, ?>> entries(Object map) throws Exception {
    return Scala.each((scala.collection.Iterator<scala.Tuple2<?, ?>>) Scala.call(map, "iterator"));
  }

  private static Object value(Object target, String name) throws Exception {
    return field(target, name).get(target);
  }

  /** Scala writes the name of a class and $$ in front of some names. */
  private static Field field(Object target, String name) throws Exception {
    for (Class<?> its = target.getClass(); its != null; its = its.getSuperclass()) {
      for (Field field : its.getDeclaredFields()) {
        if (!field.getName().equals(name) && !field.getName().endsWith("$$" + name)) continue;
        field.setAccessible(true);
        return field;
      }
    }
    throw new NoSuchFieldException(name + " of " + target.getClass().getName());
  }
}
