package blocklist.spark;

/* What one line of the table says of its key. A higher rank is a stronger block; keys of one block share it. Immutable. */
final class TableEntry {
  final int rank;
  final long end;
  final boolean evacuate;
  final String id;
  final String cause;

  TableEntry(int rank, long end, boolean evacuate, String id, String cause) {
    this.rank = rank;
    this.end = end;
    this.evacuate = evacuate;
    this.id = id;
    this.cause = cause;
  }

  /* Whether the block has ended: from `now == end` on, in Unix milliseconds. */
  boolean ended(long now) {
    return now >= end;
  }
}
