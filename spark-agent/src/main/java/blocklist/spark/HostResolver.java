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
final class HostResolver implements HostDirectory {
  /** Milliseconds after which a lookup that has not ended is not waited for any more. */
  static final long TIMEOUT = 10000;
  private static final long TTL = 600000;
  private static final long FAILED_TTL = 60000;
  private static final int THREADS = 8;
  private static final String[] NONE = {};

  private static final class Lookup {
    final long requestedAt = Times.monotonic();
    volatile String[] names = null;
    volatile long refreshAt = Long.MAX_VALUE;
  }

  private final ConcurrentHashMap<String, Lookup> lookups = new ConcurrentHashMap<>();
  private final ThreadPoolExecutor pool;
  private final Runnable onResolved;

  /** {@code onResolved} is called in a thread of the resolver whenever the names of a host are known. */
  HostResolver(Runnable onResolved) {
    this.onResolved = onResolved;
    ThreadFactory threads = work -> {
      Thread thread = new Thread(work, "blocklist-names");
      thread.setDaemon(true);
      return thread;
    };
    pool = new ThreadPoolExecutor(THREADS, THREADS, 5, TimeUnit.SECONDS, new LinkedBlockingQueue<>(), threads);
    pool.allowCoreThreadTimeOut(true);
  }

  /** Starts a lookup for a new host. */
  public String[] names(String host) {
    Lookup lookup = lookups.get(host);
    if (lookup == null) lookup = start(host);
    return lookup.names;
  }

  /** Starts no lookup: also asked for lost hosts, whose lookups retain() forgets, so that each would be followed by the next. */
  public String[] machineNames(String host) {
    Lookup lookup = lookups.get(host);
    return lookup == null ? null : lookup.names;
  }

  /** Not 0 if the lookup has failed, or takes too long. */
  public long overdue(String host) {
    Lookup lookup = lookups.get(host);
    if (lookup == null || (lookup.names != null && lookup.names != NONE)) return 0;
    long age = Times.monotonic() - lookup.requestedAt;
    if (lookup.names == NONE) return Math.max(1, age);
    return age >= holdMillis() - NOTICE_MILLIS ? age : 0;
  }

  public boolean isPending(String host) {
    Lookup lookup = lookups.get(host);
    return lookup == null || (lookup.names == null && Times.monotonic() - lookup.requestedAt < TIMEOUT);
  }

  /** Forgets all other hosts, and looks up again what is old. */
  public void retain(Collection<String> hosts) {
    lookups.keySet().retainAll(hosts);
    lookups.forEach((host, lookup) -> {
      if (Times.monotonic() < lookup.refreshAt) return;
      lookup.refreshAt = Long.MAX_VALUE;
      submit(host, lookup);
    });
  }

  public void close() {
    pool.shutdownNow();
  }

  private Lookup start(String host) {
    Lookup lookup = new Lookup();
    Lookup before = lookups.putIfAbsent(host, lookup);
    if (before != null) return before;
    submit(host, lookup);
    return lookup;
  }

  private void submit(String host, Lookup lookup) {
    if (pool.isShutdown()) return;
    pool.execute(() -> {
      String[] found = resolve(host);
      boolean failed = found == NONE;
      // A failed refresh keeps what was known.
      if (!failed || lookup.names == null) lookup.names = found;
      lookup.refreshAt = Times.monotonic() + (failed ? FAILED_TTL : TTL);
      try {
        onResolved.run();
      } catch (Throwable t) {
        // A handler of uncaught exceptions may end the driver. The names are put in force once they are looked up again.
        lookup.refreshAt = Times.monotonic() + FAILED_TTL;
      }
    });
  }

  /** NONE if the lookup fails, for whatever reason. */
  static String[] resolve(String host) {
    Set<String> names = new HashSet<>();
    try {
      boolean isAddress = HostNames.address(host) != null;
      for (InetAddress address : InetAddress.getAllByName(host)) {
        names.add(HostNames.normalize(address.getHostAddress()));
        if (isAddress) names.add(HostNames.normalize(address.getCanonicalHostName()));
      }
    } catch (Throwable t) {
      // Errors, too: a lookup that ended without a result would never be repeated.
      return NONE;
    }
    return names.toArray(new String[0]);
  }
}
