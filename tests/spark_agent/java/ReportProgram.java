package blocklist.spark;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Map;
import java.util.Timer;
import java.util.TreeMap;

/*
 * The reports of an application that has no executors, to the service at the URL in the first argument, as the session in
 * the second one. Each line of the standard input wakes them; a number in it is the number of blocks that are refused from
 * now on, at revision 7. They end with it.
 */
public final class ReportProgram {
  private static volatile Snapshot snapshot = snapshot(-1, 0);

  private static Snapshot snapshot(long revision, int refusals) {
    Map refused = new TreeMap();
    for (int i = 0; i < refusals; i++) refused.put("n" + i, "why");
    return new Snapshot(revision, Table.EMPTY, Plan.EMPTY, refused, new ArrayList(), null);
  }

  public static void main(String[] arguments) throws Exception {
    Map settings = new HashMap();
    settings.put("url", arguments[0]);
    final Timer timer = new Timer(true);
    ReportLoop loop = new ReportLoop(new ServiceClient(Settings.of(settings), "test", timer), new ReportSource() {
      public int minNodes() {
        return 0;
      }

      public Snapshot snapshot() {
        return snapshot;
      }

      public Map report(Snapshot present) {
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
    }, "app", arguments[1]);
    loop.start();
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      if (line.length() > 0) snapshot = snapshot(7, Integer.parseInt(line));
      loop.wake();
    }
    loop.close();
  }
}
