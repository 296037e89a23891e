package blocklist.spark;

/** What BlocklistTracker asks and reports. The caller holds the monitor of the scheduler; nothing may be thrown. */
interface SchedulerHooks {
  /** Before each round of resource offers. */
  void beforeOffers();

  boolean excludes(String host);

  /** Whether an executor gets no tasks although its host may. */
  boolean excludesExecutor(String executor);

  /** Whether a host that is excluded now will be opened without anybody's doing. */
  boolean willOpen();

  void executorRemoved(String executor);

  Object agent();
}
