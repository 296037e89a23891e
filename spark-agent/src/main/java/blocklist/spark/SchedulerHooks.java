package blocklist.spark;

/** What BlocklistTracker asks and reports. The caller holds the monitor of the scheduler; nothing may be thrown. */
interface SchedulerHooks {
  /** Before each round of resource offers. */
  void beforeOffers();

  boolean excludes(String host);

  void executorRemoved(String executor);

  Object agent();
}
