package blocklist.spark;

import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.Reader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/*
 * Lets the tests call the classes that decide. A request is a length (8 bytes) and that many bytes of UTF-8: a line with
 * the command, and its arguments. `table` takes the rest as the text of a table, and reads it as it comes. The reply is a
 * length (4 bytes) and lines.
 */
public final class DecisionServer {
  /* Counts look-ups. */
  private static final class CountingMap extends HashMap<String, Table.Entry> {
    private static final long serialVersionUID = 1;
    long gets = 0;

    CountingMap(Map<String, Table.Entry> entries) {
      super(entries);
    }

    public Table.Entry get(Object key) {
      gets++;
      return super.get(key);
    }
  }

  /* The rest of one request. */
  private static final class Part extends InputStream {
    private final InputStream in;
    private long left;

    Part(InputStream in, long left) {
      this.in = in;
      this.left = left;
    }

    public int read() throws IOException {
      if (left == 0) return -1;
      left--;
      return in.read();
    }

    public int read(byte[] b, int offset, int length) throws IOException {
      if (left == 0) return -1;
      int n = in.read(b, offset, (int) Math.min(left, length));
      left -= n;
      return n;
    }
  }

  private Table table = Table.EMPTY;
  private CountingMap entries = new CountingMap(new HashMap<>());

  public static void main(String[] arguments) throws Exception {
    DecisionServer server = new DecisionServer();
    DataInputStream in = new DataInputStream(new BufferedInputStream(System.in));
    DataOutputStream out = new DataOutputStream(System.out);
    while (true) {
      int first = in.read();
      if (first < 0) return;
      long length = 0;
      for (int i = 1; i < 8; i++) length = length << 8 | in.readUnsignedByte();
      Part part = new Part(in, length);
      byte[] reply = server.reply(part).getBytes("UTF-8");
      byte[] unread = new byte[8192];
      while (part.read(unread, 0, unread.length) >= 0);
      out.writeInt(reply.length);
      out.write(reply);
      out.flush();
    }
  }

  private String reply(InputStream request) throws Exception {
    StringBuilder command = new StringBuilder();
    for (int c = request.read(); c >= 0 && c != '\n'; c = request.read()) command.append((char) c);
    Reader rest = new InputStreamReader(request, "UTF-8");
    if (command.toString().equals("table")) return read(rest);
    StringBuilder text = new StringBuilder();
    char[] chars = new char[8192];
    for (int n = rest.read(chars); n >= 0; n = rest.read(chars)) text.append(chars, 0, n);
    String[] lines = text.length() == 0 ? new String[0] : text.toString().split("\n", -1);
    if (command.toString().equals("plan")) return plan(lines);
    if (command.toString().equals("placement")) return placement(lines);
    if (command.toString().equals("guard")) return guard(lines);
    if (command.toString().equals("affinity")) return affinity(lines);
    if (command.toString().equals("canaries")) return canaries(lines);
    if (command.toString().equals("judge")) return judge(lines);
    // Without a body there is one name, which is empty.
    return command.toString().equals("keys") ? keys(lines.length == 0 ? new String[] {""} : lines) : limit(lines);
  }

  private String read(Reader text) throws IOException {
    try {
      Table read = Table.read(text);
      entries = new CountingMap(read.entries());
      table = new Table(read.revision, entries);
      return "ok\t" + table.revision + "\t" + table.size();
    } catch (Table.InvalidException e) {
      return "invalid\t" + e.getMessage();
    }
  }

  /* A line with the requirements and the time, then one for each host. */
  private String plan(String[] lines) {
    String[] needs = lines[0].split("\t");
    Plan.Requirements requirements =
      new Plan.Requirements(Integer.parseInt(needs[0]), Integer.parseInt(needs[1]), Integer.parseInt(needs[2]), needs[3].equals("1"));
    List<LiveHost> hosts = new ArrayList<>();
    for (int i = 1; i < lines.length; i++) hosts.add(host(lines[i].split("\t", -1)));
    new Canaries().choose(hosts);
    for (LiveHost host : hosts) {
      if (!host.canaries.isEmpty()) host.canarySlots = host.slots / host.executors.size() * host.canaries.size();
    }
    entries.gets = 0;
    long began = System.nanoTime();
    Plan plan = Plan.make(table, hosts, requirements, Long.parseLong(needs[4]));
    long took = System.nanoTime() - began;
    return written(plan) + "lookups\t" + entries.gets + "\nnanos\t" + took + "\n";
  }

  private static LiveHost host(String[] fields) {
    String[] names = fields[2].equals("?") ? null : fields[2].length() == 0 ? new String[0] : fields[2].split(" ");
    LiveHost host = new LiveHost(fields[0], fields[8], fields[1].equals("1"), names, Long.parseLong(fields[3]));
    host.required = fields[4].equals("1");
    host.slots = Integer.parseInt(fields[5]);
    host.runsBarrierTasks = fields[6].equals("1");
    host.reachedEvacuationLimit = fields[7].equals("1");
    host.busy = fields[9].equals("1");
    host.unannounced = fields[10].equals("1");
    if (fields[11].length() > 0) host.executors = Arrays.asList(fields[11].split(" "));
    if (fields[12].length() > 0) host.usableExecutors = profiles(fields[12].split(" "));
    return host;
  }

  /* Of `ID:PROFILE`. */
  private static Map<String, Integer> profiles(String[] executors) {
    Map<String, Integer> profiles = new HashMap<>();
    for (int i = 0; i < executors.length; i++) {
      String[] fields = executors[i].split(":");
      profiles.put(fields[0], Integer.valueOf(fields[1]));
    }
    return profiles;
  }

  private static String written(Plan plan) {
    StringBuilder out = new StringBuilder();
    for (HostBlock block : plan.matched.values())
      out.append("matched\t" + block.host + "\t" + block.id + "\t" + block.end + "\t" + block.evacuate + "\t" + block.cause + "\n");
    plan.canaries.forEach((host, ids) -> out.append("canary\t" + host + "\t" + String.join(" ", ids) + "\n"));
    append(out, "covered", plan.covered.keySet());
    append(out, "closed", plan.closedExecutors.keySet());
    append(out, "provisional", plan.provisional);
    append(out, "announced", plan.announced);
    append(out, "held", plan.held);
    append(out, "evacuated", plan.evacuated);
    plan.refused.forEach((id, reason) -> out.append("refused\t" + id + "\t" + reason + "\n"));
    return out.append("valid\t" + plan.validUntil + "\n").toString();
  }

  private static void append(StringBuilder out, String word, Collection<String> values) {
    for (String value : values) out.append(word + "\t" + value + "\n");
  }

  private static String keys(String[] names) {
    StringBuilder out = new StringBuilder();
    for (String name : names) out.append(String.join("\t", HostNames.keys(name)) + "\n");
    return out.toString();
  }

  /* A line with the number of blocks that give way, the maximum number of names and the time, then one for each node. */
  private String placement(String[] lines) {
    String[] first = lines[0].split("\t");
    List<Placement.Node> nodes = new ArrayList<>();
    for (int i = 1; i < lines.length; i++) {
      String[] fields = lines[i].split("\t", -1);
      nodes.add(new Placement.Node(fields[0], fields[1].length() == 0 ? new String[0] : fields[1].split(" "), fields[2].equals("1")));
    }
    Placement made = Placement.make(table, nodes, Integer.parseInt(first[0]), Integer.parseInt(first[1]), Long.parseLong(first[2]));
    StringBuilder out = new StringBuilder();
    for (String name : made.names) out.append("name\t" + name + "\t" + String.join("\t", made.idsByName.get(name)) + "\n");
    made.refused.forEach((id, reason) -> out.append("refused\t" + id + "\t" + reason + "\n"));
    return out.append("valid\t" + made.validUntil + "\n").toString();
  }

  /* Lines with whether an executor is open, whether a pod is waiting, and the time, in one Placement.Guard. */
  private static String guard(String[] lines) {
    Placement.Guard guard = new Placement.Guard();
    StringBuilder out = new StringBuilder();
    for (int i = 0; i < lines.length; i++) {
      String[] fields = lines[i].split(" ");
      out.append(guard.update(fields[0].equals("1"), fields[1].equals("1"), Long.parseLong(fields[2]))).append("\n");
    }
    return out.toString();
  }

  /* A line with the names to exclude, then a pod. The reply has a line with the names that the pod keeps off, sorted, `*`
     for all; one with the number of terms before; and the pod after. */
  private static String affinity(String[] lines) {
    @SuppressWarnings("unchecked")
    Map<String, Object> pod = (Map<String, Object>) value(Arrays.asList(lines).subList(1, lines.length).iterator());
    int terms = NodeAffinity.terms(pod);
    if (lines[0].length() > 0) NodeAffinity.exclude(pod, Arrays.asList(lines[0].split(" ")));
    Set<String> excluded = NodeAffinity.excluded(pod);
    StringBuilder out = new StringBuilder();
    if (excluded == null) out.append("*");
    else out.append(String.join(" ", new TreeSet<>(excluded)));
    out.append("\n" + terms + "\n");
    write(pod, out);
    return out.toString();
  }

  /* A value in lines: `{`, then a name and a value for each member, `}`; `[`, then values, `]`; or `"` and a text. */
  private static Object value(Iterator<String> lines) {
    return value(lines.next(), lines);
  }

  private static Object value(String first, Iterator<String> lines) {
    if (first.startsWith("\"")) return first.substring(1);
    if (first.equals("[")) {
      List<Object> list = new ArrayList<>();
      for (String line = lines.next(); !line.equals("]"); line = lines.next()) list.add(value(line, lines));
      return list;
    }
    Map<String, Object> map = new HashMap<>();
    for (String line = lines.next(); !line.equals("}"); line = lines.next()) map.put(line, value(lines));
    return map;
  }

  private static void write(Object value, StringBuilder out) {
    if (value instanceof Map) {
      out.append("{\n");
      ((Map<?, ?>) value).forEach((name, member) -> {
        out.append(name).append("\n");
        write(member, out);
      });
      out.append("}\n");
    } else if (value instanceof List) {
      out.append("[\n");
      ((List<?>) value).forEach(each -> write(each, out));
      out.append("]\n");
    } else out.append("\"").append(value).append("\n");
  }

  /* A line for each round, with `NODE=ID:PROFILE,ID:PROFILE...` of the usable executors of its nodes, in one Canaries. */
  private static String canaries(String[] lines) {
    Canaries canaries = new Canaries();
    StringBuilder out = new StringBuilder();
    for (int i = 0; i < lines.length; i++) {
      List<LiveHost> hosts = new ArrayList<>();
      String[] nodes = lines[i].split(" ");
      for (int n = 0; n < nodes.length; n++) {
        String node = nodes[n].substring(0, nodes[n].indexOf('='));
        LiveHost host = new LiveHost("host of " + node, node, true, new String[0], LiveHost.LONG_AGO);
        host.usableExecutors = profiles(nodes[n].substring(node.length() + 1).split(","));
        hosts.add(host);
      }
      canaries.choose(hosts);
      for (LiveHost host : hosts) {
        out.append(host.node + "=" + String.join(",", host.canaries) + " ");
      }
      out.append("\n");
    }
    return out.toString();
  }

  /* Lines with what happens to one FailureJudge, and its time; the first is whether hosts serve. `findings` is replied to:
     with the nodes that are faulty and the sentences, and a dot. A host `POD@NODE` is on that node, `POD@` on none. */
  private static String judge(String[] lines) {
    FailureJudge judge = new FailureJudge(lines[0].equals("true"));
    StringBuilder out = new StringBuilder();
    for (int i = 1; i < lines.length; i++) {
      String[] it = lines[i].split("\t", -1);
      long now = Long.parseLong(it[1]);
      if (it[0].equals("ok")) judge.taskSucceeded(Integer.parseInt(it[2]), Integer.parseInt(it[3]), it[4], Long.parseLong(it[5]), now, now);
      else if (it[0].equals("fail")) judge.taskFailed(Integer.parseInt(it[2]), Integer.parseInt(it[3]), it[4], it[5], it[6], Long.parseLong(it[7]), now, now);
      else if (it[0].equals("add")) judge.executorAdded(it[2], it[3], now);
      else if (it[0].equals("remove")) judge.executorRemoved(it[2], it[3], now);
      else if (it[0].equals("fetch")) judge.fetchFailed(Integer.parseInt(it[2]), it[3], it[4], it[5], Long.parseLong(it[6]), now, now);
      else if (it[0].equals("lost")) judge.taskLost(Integer.parseInt(it[2]), Integer.parseInt(it[3]), it[4], now);
      else {
        judge.findings(DecisionServer::nodeOf, now).forEach((node, reason) -> out.append(node + "\t" + reason + "\n"));
        out.append(".\n");
      }
    }
    return out.toString();
  }

  private static String nodeOf(String host) {
    if (host.endsWith("@")) return null;
    return host.substring(host.indexOf('@') + 1);
  }

  /* Lines `update TIME HOST...`, `take TASK HOST` and `reached HOST`, in one EvacuationLimit. */
  private static String limit(String[] lines) {
    EvacuationLimit limit = new EvacuationLimit();
    StringBuilder out = new StringBuilder();
    for (int i = 0; i < lines.length; i++) {
      String[] fields = lines[i].split(" ");
      if (fields[0].equals("update")) {
        limit.update(Arrays.asList(fields).subList(2, fields.length), Long.parseLong(fields[1]));
      } else {
        out.append(fields[0].equals("take") ? limit.take(fields[1], fields[2]) : limit.isReachedOn(fields[1])).append("\n");
      }
    }
    return out.toString();
  }
}
