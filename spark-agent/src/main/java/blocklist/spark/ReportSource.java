package blocklist.spark;

import java.util.Map;

/** What ReportLoop reports. All methods may be called from any thread. */
interface ReportSource {
  /** The minimum number of usable nodes to register with; 0: none. */
  int minNodes();

  /** The mode to register with. */
  Mode mode();

  /** The mode that the service wants; null if it did not say. */
  void onMode(Mode wanted);

  Snapshot snapshot();

  /** The fields of a heartbeat: name to JSON. */
  Map<String, String> report(Snapshot snapshot);

  /** The part of a heartbeat that acknowledges a revision; empty if there is none. */
  String acknowledgement(Snapshot snapshot);

  /** The service has the refusals of this snapshot. */
  void onReported(Snapshot snapshot);

  /** No more requests follow. */
  void onDeregistered();
}
