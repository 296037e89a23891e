package blocklist.spark;

/*
 * How many blocks give way so that an application gets executors: none while one runs on an open node. Otherwise, each
 * time that new pods have been waiting for a node for PATIENCE milliseconds, more than the time before.
 *
 * The caller passes the time in milliseconds by a clock that never goes back. THREADING: the caller guards it.
 */
final class PlacementGuard {
  static final long PATIENCE = 30000;

  private int givingWay = 0;
  private boolean waiting = false;
  private long since = 0;

  /* `hasOpenExecutor`: an executor runs on a node that is not blocked, or stays open, or is a canary. `isWaiting`: a pod that keeps off
     the present nodes finds no node. */
  int update(boolean hasOpenExecutor, boolean isWaiting, long now) {
    if (hasOpenExecutor) givingWay = 0;
    boolean continues = waiting && isWaiting && !hasOpenExecutor;
    waiting = isWaiting && !hasOpenExecutor;
    if (!continues) since = now;
    else if (now - since >= PATIENCE) {
      givingWay = Placement.next(givingWay);
      waiting = false;
    }
    return givingWay;
  }
}
