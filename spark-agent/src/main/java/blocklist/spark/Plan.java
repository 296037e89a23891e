package blocklist.spark;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;

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
  /* What an application needs to go on, whatever the list says. Immutable. */
  static final class Requirements {
    /* Minimum number of open hosts: the greater of spark.blocklist.keepHosts and spark.blocklist.minNodes. */
    final int minOpenHosts;
    /* Number of slots that a barrier stage needs at once, while it waits and while it runs; 0 without one. */
    final int barrierSlots;
    /* Whether it runs a continuous query: Spark does not restart its tasks, so hosts are marked only. */
    final boolean continuous;

    Requirements(int keepHosts, int minNodes, int barrierSlots, boolean continuous) {
      this.minOpenHosts = Math.max(keepHosts, minNodes);
      this.barrierSlots = barrierSlots;
      this.continuous = continuous;
    }
  }

  static final long HOLD_MILLIS = 2000;
  static final long JOIN_MILLIS = 5000;
  static final long NOTICE_MILLIS = 2000;
  static final Plan EMPTY = make(Table.EMPTY, new ArrayList<>(), new Requirements(1, 0, 0, false), 0);

  /* Host to HostBlock, the weakest first: the hosts that get no tasks because they are blocked, or only in canaries. */
  final Map<String, HostBlock> covered;
  /* The covered hosts that get no tasks at all. */
  final Set<String> closedHosts;
  /* The other covered hosts: host to its canaries, if it has any, and the ids of its executors that get no tasks to their host. */
  final Map<String, List<String>> canaries;
  final Map<String, String> closedExecutors;
  /* Names of the covered hosts that will be opened unless others join, and whose blocks are not refused yet. */
  final Set<String> provisional;
  /* Names of the covered hosts whose blocks are refused, because they will be opened. */
  final Set<String> announced;
  /* Names of hosts that get no tasks until their further names are known. */
  final Set<String> held;
  /* The covered hosts on which the tasks are to be stopped, so that they restart elsewhere. */
  final Set<String> evacuated;
  /* Host to HostBlock: all hosts that an entry matches, also those that stay open. */
  final Map<String, HostBlock> matched;
  /* Node id to the reason why its block is not carried out, or not wholly, on one of its hosts. */
  final Map<String, String> refused;
  /* When the plan is to be made anew even if nothing else changes, in Unix milliseconds: a block or a hold ends. */
  final long validUntil;

  private Plan(Maker maker, Map<String, HostBlock> covered, Map<String, HostBlock> matched, Set<String> announced) {
    this.covered = Collections.unmodifiableMap(covered);
    this.closedHosts = closedHosts(covered);
    this.canaries = Collections.unmodifiableMap(maker.canaries(covered));
    this.closedExecutors = Collections.unmodifiableMap(maker.closedExecutors(covered));
    this.provisional = Collections.unmodifiableSet(maker.provisional);
    this.announced = Collections.unmodifiableSet(announced);
    this.held = Collections.unmodifiableSet(maker.held);
    this.evacuated = Collections.unmodifiableSet(maker.evacuated(covered));
    this.matched = Collections.unmodifiableMap(matched);
    this.refused = Collections.unmodifiableMap(maker.refused());
    this.validUntil = maker.validUntil;
  }

  /* Decide at `now` (Unix ms) for these LiveHosts, whose names differ. */
  static Plan make(Table table, List<LiveHost> hosts, Requirements requirements, long now) {
    return new Maker(table, hosts, requirements, now).plan();
  }

  private static Set<String> closedHosts(Map<String, HostBlock> covered) {
    Set<String> closed = new LinkedHashSet<>();
    for (HostBlock block : covered.values()) if (!block.canary) closed.add(block.host);
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
    private final Map<String, LiveHost> hosts = new HashMap<>();
    /* HostBlocks, the weakest first, and by host. */
    private final TreeSet<HostBlock> blocks = new TreeSet<>();
    private final Map<String, HostBlock> blockByHost = new HashMap<>();
    private final Set<String> held = new TreeSet<>();
    /* Host to the reason why it stays open. */
    private final Map<String, String> leftOpen = new HashMap<>();
    /* Host to the reason why it will be opened. */
    private final Map<String, String> opening = new HashMap<>();
    private final Set<String> provisional = new HashSet<>();
    private long validUntil = Long.MAX_VALUE;

    Maker(Table table, List<LiveHost> hosts, Requirements requirements, long now) {
      this.requirements = requirements;
      this.now = now;
      HostMatcher matcher = new HostMatcher(table, hosts, now);
      for (LiveHost host : hosts) {
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
      Set<HostBlock> later = forMinOpenHosts(0);
      for (HostBlock block : forMinOpenHosts(JOIN_MILLIS)) {
        leftOpen.put(block.host, Refusals.minOpenHosts(block, requirements.minOpenHosts, hasCanaries()));
      }
      openForBarrier();
      openLater(later);
      Map<String, HostBlock> covered = new LinkedHashMap<>();
      Map<String, HostBlock> matched = new LinkedHashMap<>();
      Set<String> announced = new HashSet<>(opening.keySet());
      for (HostBlock block : blocks) {
        matched.put(block.host, block);
        if (leftOpen.containsKey(block.host) && host(block).unannounced) announced.add(block.host);
        if (!leftOpen.containsKey(block.host) || host(block).unannounced) covered.put(block.host, block);
      }
      return new Plan(this, covered, matched, announced);
    }

    private void openRequired() {
      for (HostBlock block : usableBlocks()) {
        if (host(block).required) leftOpen.put(block.host, Refusals.requiredByTask(block));
      }
    }

    /* The HostBlocks to open, if hosts that have joined less than `newMillis` ago are to wait. All hosts of a node together,
       as it counts as one. */
    private Set<HostBlock> forMinOpenHosts(long newMillis) {
      Set<String> open = openNodes();
      int missing = requirements.minOpenHosts - open.size();
      Set<String> opened = new HashSet<>();
      Set<HostBlock> found = new HashSet<>();
      for (HostBlock block : usableBlocks()) {
        if (block.canary || leftOpen.containsKey(block.host) || isNew(host(block), newMillis)) continue;
        if (missing > 0 && !open.contains(block.node) && opened.add(block.node)) missing--;
        if (opened.contains(block.node)) found.add(block);
      }
      return found;
    }

    /* Those that will be opened once they have not joined just now. */
    private void openLater(Set<HostBlock> later) {
      for (HostBlock block : later) {
        if (leftOpen.containsKey(block.host)) continue;
        if (isNew(host(block), JOIN_MILLIS - NOTICE_MILLIS)) provisional.add(block.host);
        else opening.put(block.host, Refusals.opensSoon(block, requirements.minOpenHosts));
      }
    }

    /* Nothing is opened for a stage that could not start even if all hosts were open. */
    private void openForBarrier() {
      int all = 0;
      int missing = requirements.barrierSlots;
      for (LiveHost host : hosts.values()) {
        if (!host.open) continue;
        all += host.slots;
        missing -= openSlots(host);
      }
      if (all < requirements.barrierSlots) return;
      for (HostBlock block : usableBlocks()) {
        if (missing <= 0) return;
        int more = host(block).slots - openSlots(host(block));
        if (more == 0) continue;
        leftOpen.put(block.host, Refusals.barrierSlots(block, requirements.barrierSlots));
        missing -= more;
      }
    }

    /* The blocks of hosts on which Spark would start tasks, the weakest first. */
    private List<HostBlock> usableBlocks() {
      return blocks.stream().filter(block -> host(block).open).collect(Collectors.toList());
    }

    private LiveHost host(HostBlock block) {
      return hosts.get(block.host);
    }

    private int openSlots(LiveHost host) {
      if (!isCovered(host.name)) return host.slots;
      return isCanary(host.name) ? host.canarySlots : 0;
    }

    private boolean isCanary(String host) {
      return blockByHost.get(host).canary;
    }

    private boolean hasCanaries() {
      return !blocks.isEmpty() && blocks.first().canary;
    }

    private boolean isCovered(String host) {
      return blockByHost.containsKey(host) && !leftOpen.containsKey(host);
    }

    private Set<String> openNodes() {
      Set<String> open = new HashSet<>();
      for (LiveHost host : hosts.values()) {
        if (host.open && !isCovered(host.name) && !held.contains(host.name)) open.add(host.node);
      }
      return open;
    }

    private Map<String, List<String>> canaries(Map<String, HostBlock> covered) {
      Map<String, List<String>> canaries = new TreeMap<>();
      covered.forEach((name, block) -> {
        if (block.canary && !host(block).canaries.isEmpty()) canaries.put(name, host(block).canaries);
      });
      return canaries;
    }

    private Map<String, String> closedExecutors(Map<String, HostBlock> covered) {
      Map<String, String> closed = new HashMap<>();
      covered.forEach((name, block) -> {
        if (!block.canary) return;
        for (String executor : host(block).executors) closed.put(executor, name);
        closed.keySet().removeAll(host(block).canaries);
      });
      return closed;
    }

    private Set<String> evacuated(Map<String, HostBlock> covered) {
      Set<String> evacuated = new HashSet<>();
      if (requirements.continuous) return evacuated;
      for (HostBlock block : covered.values()) if (block.evacuate && !leftOpen.containsKey(block.host)) evacuated.add(block.host);
      return evacuated;
    }

    /* Of several hosts with one id, one that stays open counts before one that is not evacuated, and the strongest. */
    private Map<String, String> refused() {
      Map<String, String> refused = new TreeMap<>();
      for (HostBlock block : blocks) {
        String reason = leftOpen.containsKey(block.host) ? null : reasonNotToEvacuate(block);
        if (reason != null) putAll(refused, block.evacuatingIds(), reason);
      }
      for (HostBlock block : blocks) {
        String reason = leftOpen.getOrDefault(block.host, opening.get(block.host));
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

    private static void putAll(Map<String, String> refused, List<String> ids, String reason) {
      for (String id : ids) refused.put(id, reason);
    }
  }
}
