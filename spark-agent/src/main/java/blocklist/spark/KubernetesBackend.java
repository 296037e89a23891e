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
  private final Collection subscribers;
  private final Object allocator;
  private final AtomicInteger lastId;
  private final Object newPods;
  private Object seen = null;
  private Map pods = new HashMap();

  static boolean isUsedBy(SparkContext sc) {
    return NAME.equals(sc.schedulerBackend().getClass().getName());
  }

  /** Throws an exception if this Spark keeps its pods in another way. */
  KubernetesBackend(SparkContext sc) throws Exception {
    Object backend = sc.schedulerBackend();
    client = value(backend, "kubernetesClient");
    store = value(backend, "snapshotsStore");
    snapshot = field(store, "currentSnapshot");
    subscribers = (Collection) value(store, "subscribers");
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

  public synchronized Map pods() throws Exception {
    Object present = snapshot.get(store);
    if (present == seen) return pods;
    Map read = new HashMap();
    scala.collection.Iterator it = iterator(Reflection.call(present, "executorPods"));
    while (it.hasNext()) {
      scala.Tuple2 entry = (scala.Tuple2) it.next();
      Long id = (Long) entry._1();
      read.put(id, PodReader.read(id.longValue(), Reflection.call(entry._2(), "pod")));
    }
    pods = Collections.unmodifiableMap(read);
    seen = present;
    return pods;
  }

  /**
   * Spark makes pods in rounds, and holds a lock meanwhile: after a change of the template, pods of a later number obey it,
   * once this has not returned null.
   */
  public MadePods made() throws Exception {
    Set held = new HashSet();
    try {
      for (Iterator it = subscribers.iterator(); it.hasNext();) {
        ReentrantLock lock = (ReentrantLock) value(it.next(), "lock");
        // Spark does not wait for the lock either: it comes back a moment later.
        if (!lock.tryLock()) return null;
        held.add(lock);
      }
      Set unseen = new HashSet();
      scala.collection.Iterator it = iterator(newPods);
      while (it.hasNext()) unseen.add(((scala.Tuple2) it.next())._1());
      return new MadePods(lastId.get(), unseen);
    } finally {
      for (Iterator it = held.iterator(); it.hasNext();) ((ReentrantLock) it.next()).unlock();
    }
  }

  private static scala.collection.Iterator iterator(Object collection) throws Exception {
    return (scala.collection.Iterator) Reflection.call(collection, "iterator");
  }

  private static Object value(Object target, String name) throws Exception {
    return field(target, name).get(target);
  }

  /** Scala writes the name of a class and $$ in front of some names. */
  private static Field field(Object target, String name) throws Exception {
    for (Class its = target.getClass(); its != null; its = its.getSuperclass()) {
      Field[] fields = its.getDeclaredFields();
      for (int i = 0; i < fields.length; i++) {
        if (!fields[i].getName().equals(name) && !fields[i].getName().endsWith("$$" + name)) continue;
        fields[i].setAccessible(true);
        return fields[i];
      }
    }
    throw new NoSuchFieldException(name + " of " + target.getClass().getName());
  }
}
