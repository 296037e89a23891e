package blocklist.spark;

import java.io.IOException;
import java.util.concurrent.TimeUnit;

/** Waits for the next table and hands it over. */
final class TableLoop extends Loop {
  private static final int WAIT_SECONDS = 50;
  private static final long PAUSE = 1000;
  private static final long SHORT_PAUSE = 20;
  /** Until the agent is on again, which wakes this. */
  private static final long RESTING = 60000;

  private final ServiceClient client;
  private final BlocklistAgent agent;
  private String etag = null;
  /** How often the agent has forgotten its table; only {@code forget} writes it, one call at a time. */
  private volatile int rounds = 0;
  private int known = 0;
  private volatile boolean connected = false;

  TableLoop(ServiceClient client, BlocklistAgent agent) {
    super("blocklist-table", "receive the list");
    this.client = client;
    this.agent = agent;
  }

  /** Whether the last request was answered. */
  boolean isConnected() {
    return connected;
  }

  long runOnce() throws Exception {
    if (!agent.needsTable()) return RESTING;
    int round = rounds;
    if (round != known) etag = null;
    known = round;
    long began = System.nanoTime();
    String before = etag;
    ServiceClient.Response<Table> response;
    try {
      response = client.send("GET", "/blocklist/table", null, etag, etag == null ? 0 : WAIT_SECONDS, Table::read);
    } catch (IOException e) {
      if (round != rounds) return SHORT_PAUSE;
      throw e;
    }
    if (round != rounds) return SHORT_PAUSE;
    if (response.status != 200 && response.status != 304) throw new ServiceClient.HttpException("GET /blocklist/table", response);
    // Before the table is in force, because a start returns then, and its status must not say that there is no service.
    connected = true;
    agent.onDate(response.date);
    if (response.status == 200 && agent.onTable(response.body, response.history)) etag = response.etag;
    boolean isNew = response.status == 200 && etag != null && !etag.equals(before);
    boolean waited = System.nanoTime() - began > TimeUnit.MILLISECONDS.toNanos(PAUSE);
    // A service that does not wait must not be asked without pause, and one that changes all the time must cost little.
    return isNew ? SHORT_PAUSE : waited ? 0 : PAUSE;
  }

  /** The agent has no table any more: ask for the whole list the next time, and end a request that waits. */
  void forget() {
    rounds++;
    client.interrupt();
    wake();
  }

  void onFailure() {
    connected = false;
    agent.onNoTable();
  }

  void close() {
    super.close();
    client.close();
    connected = false;
  }
}
