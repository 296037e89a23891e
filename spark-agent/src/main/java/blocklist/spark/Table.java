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

  /*
   * Reads a table, or refuses the whole text: half a table would free hosts that are blocked.
   *
   * MEMORY: the text is read once and not kept. What is kept is bounded by MAX_CHARS and MAX_LINES: at most 23 MB, also
   * for a text that was made to cost much. The table before is there as well until this one is read.
   */
  static final class Text {
    static final int MAX_CHARS = 4 * 1000 * 1000;
    static final int MAX_LINES = 50 * 1000;
    static final int MAX_LINE_CHARS = 40 * 1000;
    static final int MAX_KEY_CHARS = 255;
    static final int MAX_CAUSE_CHARS = 200;

    private static final String MAGIC = "blocklist-table";
    private static final int FIELDS = 5;

    private final Reader text;
    private final char[] buffer = new char[8192];
    private int at = 0;
    private int filled = 0;
    private long total = 0;
    private int line = 0;
    private int rank = 0;
    private String id = "";
    private String cause = "";

    Text(Reader text) {
      this.text = text;
    }

    Table table() throws IOException {
      String[] head = split(nextLine(), ' ', 4);
      if (head == null || !MAGIC.equals(head[0])) throw invalid("this is not the first line of a table");
      if (!"1".equals(head[1])) throw invalid("its version is not 1: " + quoted(head[1]));
      if (!head[2].matches("[0-9]{1,16}")) throw invalid("the revision is not a number: " + quoted(head[2]));
      if (!head[3].matches("[0-9]{1,9}")) throw invalid("the number of lines is not a number: " + quoted(head[3]));
      int lines = Integer.parseInt(head[3]);
      if (lines > MAX_LINES) throw invalid("the table has " + lines + " lines, more than " + MAX_LINES);
      Map<String, Table.Entry> entries = new HashMap<>();
      while (entries.size() < lines) add(entries);
      if (next() >= 0) throw new Table.InvalidException("The table has more than the " + lines + " lines that its first line says.");
      return new Table(Long.parseLong(head[2]), entries);
    }

    private void add(Map<String, Table.Entry> entries) throws IOException {
      String[] fields = split(nextLine(), '\t', FIELDS);
      if (fields == null) throw invalid("it does not have " + FIELDS + " fields, separated by tabs");
      checkKey(fields[0]);
      if (!fields[3].matches("[A-Za-z0-9._:-]{1,253}")) throw invalid("the id is not a node id: " + quoted(fields[3]));
      checkText(fields[4], "cause");
      int action = action(fields[2]);
      if (!id.equals(fields[3])) rank++;
      share(fields[3], fields[4]);
      Table.Entry entry = new Table.Entry(rank, end(fields[1]), action, id, cause);
      if (entries.put(fields[0], entry) != null) throw invalid("the key is there twice: " + quoted(fields[0]));
    }

    private int action(String text) throws IOException {
      if ("mark".equals(text)) return Table.Entry.MARK;
      if ("evacuate".equals(text)) return Table.Entry.EVACUATE;
      if ("canary".equals(text)) return Table.Entry.CANARY;
      throw invalid("the action is not canary, mark or evacuate: " + quoted(text));
    }

    private void checkKey(String key) throws IOException {
      if (key.length() == 0 || key.length() > MAX_KEY_CHARS)
        throw invalid("the key does not have 1 to " + MAX_KEY_CHARS + " characters: " + quoted(key));
      checkText(key, "key");
    }

    private void checkText(String text, String name) throws IOException {
      for (int i = 0; i < text.length(); i++)
        if (Character.isISOControl(text.charAt(i))) throw invalid("the " + name + " has a control character: " + quoted(text));
    }

    private long end(String text) throws IOException {
      if (!text.matches("-?[0-9]{1,19}")) throw invalid("the end is not an integer: " + quoted(text));
      try {
        return Long.parseLong(text);
      } catch (NumberFormatException e) {
        throw invalid("the end does not fit in 64 bits: " + text);
      }
    }

    /* The keys of one block are next to each other: they share their strings, and their rank. */
    private void share(String newId, String newCause) {
      String shown = Refusals.shorten(newCause, MAX_CAUSE_CHARS);
      if (!id.equals(newId)) id = newId;
      if (!cause.equals(shown)) cause = shown;
    }

    /* Without the line break, which the last line has, too: without it the text may have been cut. */
    private String nextLine() throws IOException {
      line++;
      StringBuilder found = new StringBuilder();
      for (int c = next(); c != '\n'; c = next()) {
        if (c < 0) throw invalid("the text ends here, before the end of a line");
        if (found.length() == MAX_LINE_CHARS) throw invalid("it is longer than " + MAX_LINE_CHARS + " characters");
        found.append((char) c);
      }
      return found.toString();
    }

    /* The next character; -1 at the end. */
    private int next() throws IOException {
      if (at == filled) {
        at = 0;
        do filled = text.read(buffer, 0, buffer.length); while (filled == 0);
        if (filled < 0) {
          filled = 0;
          return -1;
        }
        total += filled;
        if (total > MAX_CHARS + buffer.length) throw new Table.InvalidException("The table is longer than " + MAX_CHARS + " characters.");
      }
      return buffer[at++];
    }

    private static String[] split(String line, char separator, int fields) {
      String[] found = line.split(separator == ' ' ? " " : "\t", fields + 1);
      return found.length == fields ? found : null;
    }

    private Table.InvalidException invalid(String why) {
      return new Table.InvalidException("Line " + line + " of the table is not valid: " + why + ".");
    }

    /* What somebody sent, fit for a log. */
    private static String quoted(String text) {
      StringBuilder shown = new StringBuilder("'");
      for (int i = 0; i < text.length() && i < 64; i++) {
        char c = text.charAt(i);
        shown.append(c < ' ' || c > '~' ? '?' : c);
      }
      return shown.append(text.length() > 64 ? "...'" : "'").toString();
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
     within the limits of Text, and what the reader throws. */
  static Table read(Reader text) throws IOException {
    return new Text(text).table();
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
