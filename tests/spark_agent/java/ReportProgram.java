package blocklist.spark;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.Timer;
import java.util.TreeMap;

/*
 * The reports of an application that has no executors, as the session and in the cluster of the arguments; a third is the file
 * of an authority. A URL in the standard input begins
 * reports to the service there, `end` ends them. Any other line wakes them; a number in it is the number of blocks that
 * are refused from now on, at revision 7. Else it is what the agent runs on from now on.
 */
public final class ReportProgram {
  private static volatile Snapshot snapshot = snapshot(-1, 0);
  private static volatile Map<String, String> software = new TreeMap<>();

  private static Snapshot snapshot(long revision, int refusals) {
    Map<String, String> refused = new TreeMap<>();
    for (int i = 0; i < refusals; i++) refused.put("n" + i, "why");
    return new Snapshot(revision, Table.EMPTY, Plan.EMPTY, refused, new ArrayList<>(), null, Mode.APPLY);
  }

  public static void main(String[] arguments) throws Exception {
    ReportLoop loop = null;
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      if (line.equals("end")) {
        loop.close();
        continue;
      }
      if (line.startsWith("http")) {
        snapshot = snapshot(-1, 0);
        software = Collections.singletonMap("product", "\"blocklist-spark\"");
        loop = started(line, arguments);
        continue;
      }
      if (line.matches("\\d+")) snapshot = snapshot(7, Integer.parseInt(line));
      else if (line.length() > 0) software = Collections.singletonMap("platform", Json.text(line));
      loop.wake();
    }
    System.exit(0);
  }

  private static ReportLoop started(String url, String[] arguments) throws Exception {
    Map<String, String> settings = new HashMap<>();
    settings.put("url", url);
    settings.put("cluster", arguments[1]);
    if (arguments.length > 2) settings.put("caFile", arguments[2]);
    final Timer timer = new Timer(true);
    ReportLoop loop = new ReportLoop(new ServiceClient(Settings.of(settings), "test", timer), new ReportSource() {
      public int minNodes() {
        return 0;
      }

      public Mode mode() {
        return Mode.APPLY;
      }

      public void onMode(Mode wanted) {}

      public Snapshot snapshot() {
        return snapshot;
      }

      public Map<String, String> report(Snapshot present) {
        return Report.fields("app", present);
      }

      public String acknowledgement(Snapshot present) {
        long revision = Report.acknowledged(present);
        return revision < 0 ? "" : ",\"ackedRevision\":" + revision;
      }

      public void onReported(Snapshot present) {}

      public void onDeregistered() {
        timer.cancel();
      }
    }, "app", arguments[0], () -> software);
    loop.start();
    return loop;
  }
}
