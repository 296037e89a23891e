package blocklist.spark;

import java.io.IOException;
import java.io.Reader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/*
 * The list of blocked nodes as drivers need it, the same for every application. Immutable.
 *
 * The service writes it as text. The first line is
 *   blocklist-table 1 REVISION LINES
 * and each of the LINES after it, the weakest block first, is separated by tabs:
 *   KEY END canary|mark|evacuate ID CAUSE
 *
 * KEY is the name of a host in lower case, an address in its shortest form, or a short name with a dot behind it, which
 * means each full name that begins with it. END is in Unix milliseconds. The ids that mean one key are merged by the
 * service, so each key has one line.
 */
final class Table {
  /* What one line of the table says of its key. A higher rank is a stronger block; keys of one block share it. Immutable. */
  static final class Entry {
    /* The actions, the weakest first. */
    static final int CANARY = 0;
    static final int MARK = 1;
    static final int EVACUATE = 2;

    final int rank;
    final long end;
    final int action;
    final String id;
    final String cause;

    Entry(int rank, long end, int action, String id, String cause) {
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

  /* The service's text is no table. The message says where and why; the table before it stays in force. */
  static final class InvalidException extends IOException {
    private static final long serialVersionUID = 1;

    InvalidException(String message) {
      super(message);
    }
  }

  static final Table EMPTY = new Table(-1, new HashMap<>());

  /* Of EMPTY, which is the table before the first one: -1. */
  final long revision;
  private final Map<String, Entry> entries;
  /* When no block is in force any more, in Unix milliseconds. */
  final long lastEnd;
  /* Whether an entry is a canary. */
  final boolean hasCanaries;
  /* The ids of the keys that are addresses, and of those that are names, in no order and more than once. */
  final List<String> idsOfAddresses = new ArrayList<>();
  final List<String> idsOfNames = new ArrayList<>();

  /* `entries` maps keys to Entry, and is not changed any more. */
  Table(long revision, Map<String, Entry> entries) {
    this.revision = revision;
    this.entries = entries;
    long last = Long.MIN_VALUE;
    boolean canaries = false;
    for (Map.Entry<String, Entry> each : entries.entrySet()) {
      Entry entry = each.getValue();
      last = Math.max(last, entry.end);
      canaries |= entry.action == Entry.CANARY;
      (HostNames.address(each.getKey()) == null ? idsOfNames : idsOfAddresses).add(entry.id);
    }
    lastEnd = last;
    hasCanaries = canaries;
  }

  /* Reads to the end of the text, or to the first error. Throws InvalidException for anything but a whole table
     within the limits of TableReader, and what the reader throws. */
  static Table read(Reader text) throws IOException {
    return new TableReader(text).table();
  }

  int size() {
    return entries.size();
  }

  Map<String, Entry> entries() {
    return entries;
  }

  /* The entry of this key; null if there is none, or if its block has ended at `now`. */
  Entry current(String key, long now) {
    Entry entry = entries.get(key);
    return entry == null || entry.ended(now) ? null : entry;
  }

  /* Whether no block is in force at `now`, or later. */
  boolean ended(long now) {
    return now >= lastEnd;
  }
}
