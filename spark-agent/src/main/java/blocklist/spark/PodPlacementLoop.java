package blocklist.spark;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.spark.SparkContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Keeps new pods off blocked nodes: writes the template of pods, and deletes pods that were made before and have no node
 * yet, so that Spark makes others. It does nothing until a node is blocked.
 *
 * <p>If it fails, the user's template is in force again, and every block is refused as far as new pods are concerned.
 */
final class PodPlacementLoop extends Loop {
  private static final Logger LOG = LoggerFactory.getLogger("blocklist");
  private static final long TICK = 1000;
  private static final long SHORT_TICK = 100;
  /** Milliseconds after which pods that cannot be judged are refused as unknown. */
  private static final long UNKNOWN_MILLIS = 60000;
  private static final long RETRY_MILLIS = 10000;
  private static final long LEAVE_MILLIS = 2000;

  private final SparkContext sc;
  private final SchedulerControl control;
  private final ExecutorPods backend;
  private final PodTemplateFile template;
  private final Placement.Guard guard = new Placement.Guard();
  private volatile Placement.Status status = Placement.Status.OFF;

  private Placement.Input input = null;
  private Placement placement = null;
  private int givingWay = 0;
  private boolean active = false;
  /** Whether pods made before the last change of the template are still to be found. */
  private boolean changed = false;
  private ExecutorPods.Made old = new ExecutorPods.Made(0, new HashSet<>());
  private long unsettledSince = -1;
  /** Names of nodes that former templates excluded. */
  private final Set<String> formerNames = new HashSet<>();
  /** Pod to the nodes that it keeps off; pod to the time and the reason of a deletion that failed. */
  private final Map<String, Set<String>> excludedByPod = new HashMap<>();
  private final Map<String, Long> retryAt = new HashMap<>();
  private final Map<String, String> undeletable = new HashMap<>();

  PodPlacementLoop(SparkContext sc, SchedulerControl control, ExecutorPods backend) {
    super("blocklist-pods", "keep new pods off blocked nodes");
    this.sc = sc;
    this.control = control;
    this.backend = backend;
    template = new PodTemplateFile(sc.conf(), backend.client());
    String why = backend.unsteerable();
    if (why != null) {
      LOG.warn("New executors may start on blocked nodes: {}.", why);
      status = failed(why);
    } else status = new Placement.Status(null, Collections.emptySet(), false, null, Collections.emptyMap());
  }

  Placement.Status status() {
    return status;
  }

  void start() {
    if (backend.unsteerable() == null) super.start();
  }

  long runOnce() throws Exception {
    Placement.Input next = control.placementInput();
    long now = control.now();
    if (sc.isStopped() || isClosed() || (!active && next.table.ended(now))) return TICK;
    active = true;
    Map<Long, ExecutorPods.Pod> pods = backend.pods();
    if (mustDecide(next, now)) decide(next, pods, now);
    if (template.put(placement.names)) {
      LOG.info("New executors keep off {} names of nodes.", placement.names.size());
      changed = true;
    }
    formerNames.addAll(placement.names);
    Map<String, String> refused = new TreeMap<>(placement.refused);
    // Read again after that: a pod made and seen in between is in neither.
    ExecutorPods.Made made = changed || !old.unseen.isEmpty() ? backend.made() : null;
    boolean settled = settle(made == null ? pods : backend.pods(), made, refused);
    status = status(settled, refused);
    return settled ? TICK : SHORT_TICK;
  }

  private boolean mustDecide(Placement.Input next, long now) {
    Placement.Input before = input;
    input = next;
    return placement == null || before.table != next.table || !before.openNodes.equals(next.openNodes) || now >= placement.validUntil;
  }

  private void decide(Placement.Input next, Map<Long, ExecutorPods.Pod> pods, long now) throws Exception {
    int maxNames = next.table.ended(now) ? 1 : Placement.MAX_NAMES / template.terms();
    placement = Placement.make(next.table, next.nodes(pods.values()), givingWay, Math.max(1, maxNames), now);
  }

  private Placement.Status status(boolean settled, Map<String, String> refused) {
    long now = Times.monotonic();
    if (settled) unsettledSince = -1;
    else if (unsettledSince < 0) unsettledSince = now;
    if (!settled && now - unsettledSince >= UNKNOWN_MILLIS) return failed("it is not known whether pods made before the block have a node");
    return new Placement.Status(input.table, input.openNodes, settled, null, refused);
  }

  private static Placement.Status failed(String why) {
    return new Placement.Status(null, Collections.emptySet(), false, Refusals.newPods(why + "."), Collections.emptyMap());
  }

  /** Whether no pod is left that may start on a node that is now excluded. Refused pods count as settled. */
  private boolean settle(Map<Long, ExecutorPods.Pod> pods, ExecutorPods.Made made, Map<String, String> refused) throws Exception {
    if (made != null) findOld(pods, made);
    boolean settled = !changed && old.unseen.isEmpty();
    boolean waiting = false;
    Set<String> unbound = new HashSet<>();
    for (ExecutorPods.Pod pod : pods.values()) {
      if (pod.ending) continue;
      if (pod.node != null) {
        replaceIfStarting(pod);
        continue;
      }
      if (!pod.isUnbound(input.registered)) continue;
      unbound.add(pod.name);
      Set<String> missing = missing(pod);
      if (missing.isEmpty()) {
        waiting |= pod.unschedulable;
        if (pod.unschedulable && keepsOffFreedNode(pod)) delete(pod);
      } else if (!changed && pod.id > old.lastId) {
        refuse(refused, missing, "pod " + pod.name + " was made without the affinity of the template.");
      } else if (!delete(pod)) {
        refuse(refused, missing, "pod " + pod.name + " was made before the block and cannot be deleted: " + undeletable.get(pod.name));
      } else settled = false;
    }
    forgetAllBut(unbound);
    giveWay(waiting);
    return settled;
  }

  private void findOld(Map<Long, ExecutorPods.Pod> pods, ExecutorPods.Made made) {
    Set<Long> unseen = new HashSet<>(made.unseen);
    if (!changed) unseen.retainAll(old.unseen);
    unseen.removeAll(pods.keySet());
    old = new ExecutorPods.Made(changed ? made.lastId : old.lastId, unseen);
    changed = false;
  }

  private void giveWay(boolean waiting) {
    int next = guard.update(input.hasOpenExecutor, waiting, Times.monotonic());
    if (next == givingWay) return;
    if (next > 0) LOG.warn("No node takes new executors, and none runs on an open node: {} blocks give way.", next);
    givingWay = next;
    placement = null;
  }

  /** A pod from before the block whose executor has not registered yet has nothing to lose, and another can be of use. */
  private void replaceIfStarting(ExecutorPods.Pod pod) {
    boolean blocked = placement.idsByName.containsKey(pod.node);
    if (blocked && input.hasOpenExecutor && pod.id <= old.lastId && !input.registered.contains(String.valueOf(pod.id))) delete(pod);
  }

  /** The excluded names that this pod does not keep off. */
  private Set<String> missing(ExecutorPods.Pod pod) throws Exception {
    Set<String> missing = new HashSet<>(placement.names);
    Set<String> excluded = excluded(pod);
    if (excluded == null) return Collections.emptySet();
    missing.removeAll(excluded);
    return missing;
  }

  private boolean keepsOffFreedNode(ExecutorPods.Pod pod) throws Exception {
    Set<String> excluded = excluded(pod);
    if (excluded == null) return false;
    Set<String> freed = new HashSet<>(formerNames);
    freed.removeAll(placement.names);
    freed.retainAll(excluded);
    return !freed.isEmpty();
  }

  /** Null: it selects no node at all. The affinity of a pod does not change. */
  private Set<String> excluded(ExecutorPods.Pod pod) throws Exception {
    if (!excludedByPod.containsKey(pod.name)) excludedByPod.put(pod.name, NodeAffinity.excluded(PodReader.affinity(pod.pod)));
    return excludedByPod.get(pod.name);
  }

  /** Delete a pod once, or again after a while; never another one of the same name. Returns false if that fails. */
  private boolean delete(ExecutorPods.Pod pod) {
    Long at = retryAt.get(pod.name);
    if (at != null && Times.monotonic() < at) return !undeletable.containsKey(pod.name);
    retryAt.put(pod.name, Times.monotonic() + RETRY_MILLIS);
    try {
      PodReader.delete(backend.client(), pod.pod);
      LOG.info("Pod {} is deleted, so that Spark replaces it by one that keeps off blocked nodes.", pod.name);
      undeletable.remove(pod.name);
      return true;
    } catch (RuntimeException e) {
      if (!undeletable.containsKey(pod.name)) LOG.warn("Pod {} cannot be deleted: {}", pod.name, e.getMessage());
      undeletable.put(pod.name, String.valueOf(e.getMessage()));
      return false;
    }
  }

  private void refuse(Map<String, String> refused, Collection<String> names, String why) {
    for (String name : names)
      for (String id : placement.idsByName.get(name)) refused.put(id, Refusals.newPods(why));
  }

  private void forgetAllBut(Set<String> unbound) {
    excludedByPod.keySet().retainAll(unbound);
    undeletable.keySet().retainAll(unbound);
    retryAt.values().removeIf(at -> Times.monotonic() >= at);
    if (formerNames.size() > 10 * Placement.MAX_NAMES) formerNames.retainAll(placement.names);
  }

  void onFailure() {
    template.restore();
    // Pods made now do not keep off any node.
    changed = true;
    placement = null;
    status = failed(lastError());
  }

  /** New pods obey the user's template alone, from now on. */
  void close() {
    template.close();
    super.close();
  }

  void onEnd() {
    try {
      if (active && !sc.isStopped()) leave();
    } catch (Exception e) {
      LOG.debug("Pods that are waiting keep off nodes that were blocked.", e);
    } finally {
      template.delete();
    }
  }

  /** Let Spark end what it is doing with the file, and replace the pods that wait because of it. */
  private void leave() throws Exception {
    long end = Times.monotonic() + LEAVE_MILLIS;
    while (backend.made() == null && Times.monotonic() < end) Thread.sleep(SHORT_TICK / 10);
    placement = Placement.make(Table.EMPTY, new ArrayList<>(), 0, 1, 0);
    for (ExecutorPods.Pod pod : backend.pods().values()) {
      if (pod.isUnbound(input.registered) && pod.unschedulable && keepsOffFreedNode(pod)) delete(pod);
    }
  }
}
