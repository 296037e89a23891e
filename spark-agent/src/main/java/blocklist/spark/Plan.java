package blocklist.spark;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

/*
 * Which live hosts get no tasks, which stay open although the list names them, and why. Pure and immutable; the same for
 * the same input, in whatever order the hosts are given. It does not depend on the plan before: the host that stays open
 * is the one with the weakest block, so it changes only if the blocks, the hosts or their names do.
 *
 * A host that has just joined, and whose names are not known yet, is held: it gets no task for its `holdMillis` at most,
 * because a block may name it by its address. Held hosts do not count as open. And one that is blocked stays so for
 * JOIN_MILLIS even if too few hosts are open, because others may join: those of an application that starts do so one
 * after the other. Spark waits meanwhile and does not abort the job, as the executors are idle. A host that runs tasks is
 * neither held nor covered so: it was open before. Whether such a block is in force is not known until NOTICE_MILLIS
 * before the end; then it is refused, so that this is reported before the first task starts there.
 *
 * Of the executors of a node with a canary block one of each resource profile still gets tasks: its canaries. So such a block
 * is never refused for the minimum number of open hosts, and its hosts do not count as open, because they may be bad.
 *
 * A host that was covered is not opened before its refusal is reported: it is covered for a moment more, as `unannounced`.
 */
final class Plan {
  static final long HOLD_MILLIS = 2000;
  static final long JOIN_MILLIS = 5000;
  static final long NOTICE_MILLIS = 2000;
  static final Plan EMPTY = make(Table.EMPTY, new ArrayList(), new Requirements(1, 0, 0, false), 0);

  /* Host to HostBlock, the weakest first: the hosts that get no tasks because they are blocked, or only in canaries. */
  final Map covered;
  /* The covered hosts that get no tasks at all. */
  final Set closedHosts;
  /* The other covered hosts: host to the List of its canaries, if it has any, and the ids of its executors that get no tasks to their host. */
  final Map canaries;
  final Map closedExecutors;
  /* Names of the covered hosts that will be opened unless others join, and whose blocks are not refused yet. */
  final Set provisional;
  /* Names of the covered hosts whose blocks are refused, because they will be opened. */
  final Set announced;
  /* Names of hosts that get no tasks until their further names are known. */
  final Set held;
  /* The covered hosts on which the tasks are to be stopped, so that they restart elsewhere. */
  final Set evacuated;
  /* Host to HostBlock: all hosts that an entry matches, also those that stay open. */
  final Map matched;
  /* Node id to the reason why its block is not carried out, or not wholly, on one of its hosts. */
  final Map refused;
  /* When the plan is to be made anew even if nothing else changes, in Unix milliseconds: a block or a hold ends. */
  final long validUntil;

  private Plan(
    Map covered, Map canaries, Map closedExecutors, Set provisional, Set announced, Set held, Set evacuated, Map matched, Map refused,
    long validUntil
  ) {
    this.covered = Collections.unmodifiableMap(covered);
    this.closedHosts = closedHosts(covered);
    this.canaries = Collections.unmodifiableMap(canaries);
    this.closedExecutors = Collections.unmodifiableMap(closedExecutors);
    this.provisional = Collections.unmodifiableSet(provisional);
    this.announced = Collections.unmodifiableSet(announced);
    this.held = Collections.unmodifiableSet(held);
    this.evacuated = Collections.unmodifiableSet(evacuated);
    this.matched = Collections.unmodifiableMap(matched);
    this.refused = Collections.unmodifiableMap(refused);
    this.validUntil = validUntil;
  }

  /* Decide at `now` (Unix ms) for these LiveHosts, whose names differ. */
  static Plan make(Table table, List hosts, Requirements requirements, long now) {
    return new Maker(table, hosts, requirements, now).plan();
  }

  private static Set closedHosts(Map covered) {
    Set closed = new LinkedHashSet();
    for (Iterator it = covered.values().iterator(); it.hasNext();) {
      HostBlock block = (HostBlock) it.next();
      if (!block.canary) closed.add(block.host);
    }
    return Collections.unmodifiableSet(closed);
  }

  /* Whether a host gets no tasks. */
  boolean excludes(String host) {
    return closedHosts.contains(host) || held.contains(host);
  }

  /* Whether an executor gets no tasks although its host may. */
  boolean excludesExecutor(String executor) {
    return closedExecutors.containsKey(executor);
  }

  /* The state of one decision. */
  private static final class Maker {
    private final Requirements requirements;
    private final long now;
    /* LiveHosts by name. */
    private final Map hosts = new HashMap();
    /* HostBlocks, the weakest first, and by host. */
    private final TreeSet blocks = new TreeSet();
    private final Map blockByHost = new HashMap();
    private final TreeSet held = new TreeSet();
    /* Host to the reason why it stays open. */
    private final Map leftOpen = new HashMap();
    /* Host to the reason why it will be opened. */
    private final Map opening = new HashMap();
    private final Set provisional = new HashSet();
    private long validUntil = Long.MAX_VALUE;

    Maker(Table table, List hosts, Requirements requirements, long now) {
      this.requirements = requirements;
      this.now = now;
      HostMatcher matcher = new HostMatcher(table, hosts, now);
      for (Iterator it = hosts.iterator(); it.hasNext();) {
        LiveHost host = (LiveHost) it.next();
        this.hosts.put(host.name, host);
        HostBlock block = matcher.blockOf(host);
        if (block != null) add(block, host);
        // What is not known yet may close its canaries, too.
        boolean mayGetTasks = block == null || block.canary;
        if (mayGetTasks && host.names == null && isNew(host, host.holdMillis) && !host.required && !table.ended(now)) hold(host, table);
      }
    }

    private void add(HostBlock block, LiveHost host) {
      blocks.add(block);
      blockByHost.put(host.name, block);
      validUntil = Math.min(validUntil, block.firstEnd());
      if (isNew(host, JOIN_MILLIS)) validUntil = Math.min(validUntil, host.joined + JOIN_MILLIS);
      if (isNew(host, JOIN_MILLIS - NOTICE_MILLIS)) validUntil = Math.min(validUntil, host.joined + JOIN_MILLIS - NOTICE_MILLIS);
    }

    private void hold(LiveHost host, Table table) {
      held.add(host.name);
      validUntil = Math.min(validUntil, Math.min(table.lastEnd, host.joined + host.holdMillis));
    }

    /* Not one that runs tasks: if no executor is idle, Spark aborts the job at once. And not if the clock was set back
       since: a host must not be held until it has caught up. */
    private boolean isNew(LiveHost host, long millis) {
      return !host.busy && host.joined != LiveHost.LONG_AGO && host.joined <= now && now - host.joined < millis;
    }

    Plan plan() {
      openRequired();
      Set later = forMinOpenHosts(0);
      for (Iterator it = forMinOpenHosts(JOIN_MILLIS).iterator(); it.hasNext();) {
        HostBlock block = (HostBlock) it.next();
        leftOpen.put(block.host, Refusals.minOpenHosts(block, requirements.minOpenHosts, hasCanaries()));
      }
      openForBarrier();
      openLater(later);
      Map covered = new LinkedHashMap();
      Map matched = new LinkedHashMap();
      Set announced = new HashSet(opening.keySet());
      for (Iterator it = blocks.iterator(); it.hasNext();) {
        HostBlock block = (HostBlock) it.next();
        matched.put(block.host, block);
        if (leftOpen.containsKey(block.host) && host(block).unannounced) announced.add(block.host);
        if (!leftOpen.containsKey(block.host) || host(block).unannounced) covered.put(block.host, block);
      }
      return new Plan(covered, canaries(covered), closedExecutors(covered), provisional, announced, held, evacuated(covered), matched, refused(), validUntil);
    }

    private void openRequired() {
      for (Iterator it = usableBlocks().iterator(); it.hasNext();) {
        HostBlock block = (HostBlock) it.next();
        if (host(block).required) leftOpen.put(block.host, Refusals.requiredByTask(block));
      }
    }

    /* The HostBlocks to open, if hosts that have joined less than `newMillis` ago are to wait. All hosts of a node together,
       as it counts as one. */
    private Set forMinOpenHosts(long newMillis) {
      Set open = openNodes();
      int missing = requirements.minOpenHosts - open.size();
      Set opened = new HashSet();
      Set found = new HashSet();
      for (Iterator it = usableBlocks().iterator(); it.hasNext();) {
        HostBlock block = (HostBlock) it.next();
        if (block.canary || leftOpen.containsKey(block.host) || isNew(host(block), newMillis)) continue;
        if (missing > 0 && !open.contains(block.node) && opened.add(block.node)) missing--;
        if (opened.contains(block.node)) found.add(block);
      }
      return found;
    }

    /* Those that will be opened once they have not joined just now. */
    private void openLater(Set later) {
      for (Iterator it = later.iterator(); it.hasNext();) {
        HostBlock block = (HostBlock) it.next();
        if (leftOpen.containsKey(block.host)) continue;
        if (isNew(host(block), JOIN_MILLIS - NOTICE_MILLIS)) provisional.add(block.host);
        else opening.put(block.host, Refusals.opensSoon(block, requirements.minOpenHosts));
      }
    }

    /* Nothing is opened for a stage that could not start even if all hosts were open. */
    private void openForBarrier() {
      int all = 0;
      int missing = requirements.barrierSlots;
      for (Iterator it = hosts.values().iterator(); it.hasNext();) {
        LiveHost host = (LiveHost) it.next();
        if (!host.open) continue;
        all += host.slots;
        missing -= openSlots(host);
      }
      if (all < requirements.barrierSlots) return;
      for (Iterator it = usableBlocks().iterator(); missing > 0 && it.hasNext();) {
        HostBlock block = (HostBlock) it.next();
        int more = host(block).slots - openSlots(host(block));
        if (more == 0) continue;
        leftOpen.put(block.host, Refusals.barrierSlots(block, requirements.barrierSlots));
        missing -= more;
      }
    }

    /* The blocks of hosts on which Spark would start tasks, the weakest first. */
    private List usableBlocks() {
      List usable = new ArrayList();
      for (Iterator it = blocks.iterator(); it.hasNext();) {
        HostBlock block = (HostBlock) it.next();
        if (host(block).open) usable.add(block);
      }
      return usable;
    }

    private LiveHost host(HostBlock block) {
      return (LiveHost) hosts.get(block.host);
    }

    private int openSlots(LiveHost host) {
      if (!isCovered(host.name)) return host.slots;
      return isCanary(host.name) ? host.canarySlots : 0;
    }

    private boolean isCanary(String host) {
      return ((HostBlock) blockByHost.get(host)).canary;
    }

    private boolean hasCanaries() {
      return !blocks.isEmpty() && ((HostBlock) blocks.first()).canary;
    }

    private boolean isCovered(String host) {
      return blockByHost.containsKey(host) && !leftOpen.containsKey(host);
    }

    private Set openNodes() {
      Set open = new HashSet();
      for (Iterator it = hosts.values().iterator(); it.hasNext();) {
        LiveHost host = (LiveHost) it.next();
        if (host.open && !isCovered(host.name) && !held.contains(host.name)) open.add(host.node);
      }
      return open;
    }

    private Map canaries(Map covered) {
      Map canaries = new TreeMap();
      for (Iterator it = covered.keySet().iterator(); it.hasNext();) {
        LiveHost host = (LiveHost) hosts.get(it.next());
        if (isCanary(host.name) && !host.canaries.isEmpty()) canaries.put(host.name, host.canaries);
      }
      return canaries;
    }

    private Map closedExecutors(Map covered) {
      Map closed = new HashMap();
      for (Iterator it = covered.keySet().iterator(); it.hasNext();) {
        LiveHost host = (LiveHost) hosts.get(it.next());
        if (!isCanary(host.name)) continue;
        for (Iterator ids = host.executors.iterator(); ids.hasNext();) closed.put(ids.next(), host.name);
        closed.keySet().removeAll(host.canaries);
      }
      return closed;
    }

    private Set evacuated(Map covered) {
      Set evacuated = new HashSet();
      for (Iterator it = covered.values().iterator(); !requirements.continuous && it.hasNext();) {
        HostBlock block = (HostBlock) it.next();
        if (block.evacuate && !leftOpen.containsKey(block.host)) evacuated.add(block.host);
      }
      return evacuated;
    }

    /* Of several hosts with one id, one that stays open counts before one that is not evacuated, and the strongest. */
    private Map refused() {
      TreeMap refused = new TreeMap();
      for (Iterator it = blocks.iterator(); it.hasNext();) {
        HostBlock block = (HostBlock) it.next();
        String reason = leftOpen.containsKey(block.host) ? null : reasonNotToEvacuate(block);
        if (reason != null) putAll(refused, block.evacuatingIds(), reason);
      }
      for (Iterator it = blocks.iterator(); it.hasNext();) {
        HostBlock block = (HostBlock) it.next();
        Object reason = leftOpen.containsKey(block.host) ? leftOpen.get(block.host) : opening.get(block.host);
        if (reason != null) putAll(refused, block.ids(), reason);
      }
      return refused;
    }

    private String reasonNotToEvacuate(HostBlock block) {
      if (!block.evacuate) return null;
      if (requirements.continuous) return Refusals.continuousQuery(block);
      if (host(block).runsBarrierTasks) return Refusals.barrierTasks(block);
      return host(block).reachedEvacuationLimit ? Refusals.evacuationLimit(block) : null;
    }

    private static void putAll(Map refused, List ids, Object reason) {
      for (Iterator it = ids.iterator(); it.hasNext();) refused.put(it.next(), reason);
    }
  }
}
