package blocklist.spark;

import java.net.InetAddress;
import java.util.Collection;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/**
 * The further names and addresses of hosts. Threads of its own resolve them, because a name server may be slow; there
 * are no threads while nothing is to be resolved. Memory grows with the hosts of {@code retain}.
 */
final class HostResolver {
  /** Milliseconds after which a host whose lookup has not ended counts as one without further names. */
  static final long TIMEOUT = 10000;
  private static final long TTL = 600000;
  private static final long FAILED_TTL = 60000;
  private static final int THREADS = 8;
  private static final String[] NONE = {};

  private static final class Lookup {
    final long requestedAt = millis();
    volatile String[] names = null;
    volatile long refreshAt = Long.MAX_VALUE;
  }

  private final ConcurrentHashMap lookups = new ConcurrentHashMap();
  private final ThreadPoolExecutor pool;
  private final Runnable onResolved;

  /** {@code onResolved} is called in a thread of the resolver whenever the names of a host are known. */
  HostResolver(Runnable onResolved) {
    this.onResolved = onResolved;
    ThreadFactory threads = new ThreadFactory() {
      public Thread newThread(Runnable work) {
        Thread thread = new Thread(work, "blocklist-names");
        thread.setDaemon(true);
        return thread;
      }
    };
    pool = new ThreadPoolExecutor(THREADS, THREADS, 5, TimeUnit.SECONDS, new LinkedBlockingQueue(), threads);
    pool.allowCoreThreadTimeOut(true);
  }

  /** The names of a host; null while they are not known. Starts a lookup for a new host. */
  String[] names(String host) {
    Lookup lookup = (Lookup) lookups.get(host);
    if (lookup == null) lookup = start(host);
    return lookup.names;
  }

  /** Milliseconds for which a host has been looked up in vain, if its lookup has failed or takes longer than TIMEOUT; else 0. */
  long overdue(String host) {
    Lookup lookup = (Lookup) lookups.get(host);
    if (lookup == null || (lookup.names != null && lookup.names != NONE)) return 0;
    long age = millis() - lookup.requestedAt;
    return lookup.names == NONE ? Math.max(1, age) : age >= TIMEOUT ? age : 0;
  }

  /** Forget all other hosts, and look up again what is old. */
  void retain(Collection hosts) {
    lookups.keySet().retainAll(hosts);
    Object[] known = lookups.keySet().toArray();
    for (int i = 0; i < known.length; i++) {
      Lookup lookup = (Lookup) lookups.get(known[i]);
      if (lookup == null || millis() < lookup.refreshAt) continue;
      lookup.refreshAt = Long.MAX_VALUE;
      submit((String) known[i], lookup);
    }
  }

  void close() {
    pool.shutdownNow();
  }

  private Lookup start(String host) {
    Lookup lookup = new Lookup();
    Object before = lookups.putIfAbsent(host, lookup);
    if (before != null) return (Lookup) before;
    submit(host, lookup);
    return lookup;
  }

  private void submit(final String host, final Lookup lookup) {
    if (pool.isShutdown()) return;
    pool.execute(new Runnable() {
      public void run() {
        String[] found = resolve(host);
        boolean failed = found == NONE;
        // A failed refresh keeps what was known.
        if (!failed || lookup.names == null) lookup.names = found;
        lookup.refreshAt = millis() + (failed ? FAILED_TTL : TTL);
        onResolved.run();
      }
    });
  }

  /**
   * NONE if the lookup fails, for whatever reason. The place for further names that Spark's backend knows, such as the
   * node of an executor's pod.
   */
  static String[] resolve(String host) {
    Set names = new HashSet();
    try {
      boolean isAddress = HostNames.address(host) != null;
      InetAddress[] all = InetAddress.getAllByName(host);
      for (int i = 0; i < all.length; i++) {
        names.add(HostNames.normalize(all[i].getHostAddress()));
        if (isAddress) names.add(HostNames.normalize(all[i].getCanonicalHostName()));
      }
    } catch (Exception e) {
      return NONE;
    }
    return (String[]) names.toArray(new String[names.size()]);
  }

  private static long millis() {
    return TimeUnit.NANOSECONDS.toMillis(System.nanoTime());
  }
}
