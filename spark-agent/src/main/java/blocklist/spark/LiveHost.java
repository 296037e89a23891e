package blocklist.spark;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;

/*
 * A host with a live executor, by Spark's name of it, at one moment. The fields that are not final are set before it is
 * handed over.
 */
final class LiveHost {
  /* For hosts that were there before the agent: they are not held, as they may run tasks. */
  static final long LONG_AGO = Long.MIN_VALUE;

  final String name;
  /* The machine that it is on. On Kubernetes each pod is a host. */
  final String node;
  /* Whether Spark itself offers it tasks: its own tracker does not exclude it. */
  final boolean open;
  /* Its further names and addresses; null while they are not known. */
  final String[] names;
  /* When its first executor came, in Unix milliseconds. */
  final long joined;
  /* Whether a task can run nowhere else. */
  boolean required = false;
  /* The ids of its executors. */
  List<String> executors = Collections.emptyList();
  /* Those on which Spark itself would start tasks, to the ids of their resource profiles (Integer). */
  Map<String, Integer> usableExecutors = Collections.emptyMap();
  /* Those that still get tasks if its node has a canary block. Of each profile one, or none if it is on another host. */
  final List<String> canaries = new ArrayList<>();
  /* How many tasks its executors, and its canaries, run at a time. Only barrier stages need it. */
  int slots = 0;
  int canarySlots = 0;
  boolean runsBarrierTasks = false;
  /* Whether tasks run on it: so it was open before, and Spark does not wait for others if all executors are busy. */
  boolean busy = false;
  /* Whether it has been closed, and may be opened only once that has been reported. */
  boolean unannounced = false;
  /* Whether tasks on it are left alone because of EvacuationLimit. */
  boolean reachedEvacuationLimit = false;
  /* How long it may be held, in milliseconds. */
  long holdMillis = Plan.HOLD_MILLIS;

  LiveHost(String name, String node, boolean open, String[] names, long joined) {
    this.name = name;
    this.node = node;
    this.open = open;
    this.names = names;
    this.joined = joined;
  }
}
