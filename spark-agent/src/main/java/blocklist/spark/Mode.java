package blocklist.spark;

/* How the agent acts: it applies blocks; says what it would do, and changes nothing; has freed all hosts, and rests. */
enum Mode {
  APPLY,
  OBSERVE,
  OFF;

  /* What the service calls it. */
  String text() {
    return name().toLowerCase(java.util.Locale.ROOT);
  }

  /* The mode with this text; null if there is none. */
  static Mode of(String text) {
    for (Mode mode : values()) if (mode.text().equals(text)) return mode;
    return null;
  }

  /* The one that does less. */
  Mode weaker(Mode other) {
    return compareTo(other) >= 0 ? this : other;
  }
}
