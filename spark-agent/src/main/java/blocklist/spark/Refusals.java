package blocklist.spark;

/* The sentences that an operator reads when a block is not carried out, or not wholly. */
final class Refusals {
  /* The service's limit for a reason. */
  static final int MAX_CHARS = 300;
  private static final int MAX_CAUSE_CHARS = 80;
  private static final int MAX_NAME_CHARS = 60;
  private static final String ELLIPSIS = "\u2026";

  private Refusals() {}

  static String requiredByTask(HostBlock block) {
    return staysOpen(block, "a task that failed on other hosts can run nowhere else.");
  }

  /* `besideCanaries`: whether there are hosts with a canary block, which do not count. */
  static String minOpenHosts(HostBlock block, int hosts, boolean besideCanaries) {
    return staysOpen(block, "the job must keep " + (hosts == 1 ? "a host" : hosts + " hosts") + " with a live executor"
      + (besideCanaries ? ", not counting canaries, and this is the weakest other block." : ", and this is the weakest block."));
  }

  static String opensSoon(HostBlock block, int hosts) {
    String start = "Host " + shorten(block.node, MAX_NAME_CHARS) + " opens in a moment although " + shorten(block.id, MAX_NAME_CHARS) + " is blocked (";
    return sentence(start, block.cause, "), unless others join: the job must keep " + (hosts == 1 ? "a host" : hosts + " hosts")
      + " with a live executor.");
  }

  static String barrierSlots(HostBlock block, int slots) {
    return staysOpen(block, "a barrier stage needs " + slots + " slots at once, more than the other open hosts have.");
  }

  static String barrierTasks(HostBlock block) {
    return notEvacuated(block, "a barrier stage runs there, and killing one of its tasks would fail the job.");
  }

  static String continuousQuery(HostBlock block) {
    return notEvacuated(block, "they belong to a continuous query, and killing one of its tasks would end the query.");
  }

  static String evacuationLimit(HostBlock block) {
    return notEvacuated(block, "the limit is " + EvacuationLimit.MAX_PER_TASK + " evacuations of a task, and "
      + EvacuationLimit.MAX_PER_HOST + " of a host in a minute.");
  }

  static String noOtherNode(long seconds) {
    return newPods("no other node has taken one for " + seconds + " s, and no executor runs on an open node.");
  }

  static String tooManyNames(int names) {
    return newPods("a pod can keep off no more than " + names + " names of nodes.");
  }

  /* `why` is a sentence without a capital letter. */
  static String newPods(String why) {
    return shorten("New executors may start there: " + why, MAX_CHARS);
  }

  private static String staysOpen(HostBlock block, String why) {
    String start = "Host " + shorten(block.node, MAX_NAME_CHARS) + " stays open although " + shorten(block.id, MAX_NAME_CHARS) + " is blocked (";
    return sentence(start, block.cause, "): " + why);
  }

  private static String notEvacuated(HostBlock block, String why) {
    String start = "Host " + shorten(block.node, MAX_NAME_CHARS) + " gets no new tasks, but not all of its tasks are evacuated although "
      + shorten(block.id, MAX_NAME_CHARS) + " is blocked (";
    return sentence(start, block.cause, "): " + why);
  }

  /* The cause gives way first: what it is about and why must be read. */
  private static String sentence(String start, String cause, String end) {
    int room = Math.min(MAX_CAUSE_CHARS, Math.max(1, MAX_CHARS - start.length() - end.length()));
    return shorten(start + shorten(cause, room) + end, MAX_CHARS);
  }

  /* At most this many characters, never half of one that takes two. */
  static String shorten(String text, int chars) {
    if (text.length() <= chars) return text;
    int end = chars - 1;
    if (end > 0 && Character.isHighSurrogate(text.charAt(end - 1))) end--;
    return text.substring(0, end) + ELLIPSIS;
  }
}
