package blocklist.spark;

/* What one line of the table says of its key. A higher rank is a stronger block; keys of one block share it. Immutable. */
final class TableEntry {
  /* The actions, the weakest first. */
  static final int CANARY = 0;
  static final int MARK = 1;
  static final int EVACUATE = 2;

  final int rank;
  final long end;
  final int action;
  final String id;
  final String cause;

  TableEntry(int rank, long end, int action, String id, String cause) {
    this.rank = rank;
    this.end = end;
    this.action = action;
    this.id = id;
    this.cause = cause;
  }

  /* Whether the block has ended: from `now == end` on, in Unix milliseconds. */
  boolean ended(long now) {
    return now >= end;
  }
}
