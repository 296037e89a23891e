package blocklist.spark;

import java.util.Set;

/** The pods that Spark had made at one moment, when it was making none. Immutable. */
final class MadePods {
  /** The highest number of an executor so far. */
  final long lastId;
  /** The numbers of those that Spark has made, but not yet seen. */
  final Set unseen;

  MadePods(long lastId, Set unseen) {
    this.lastId = lastId;
    this.unseen = unseen;
  }
}
