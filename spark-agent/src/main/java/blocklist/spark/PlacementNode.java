package blocklist.spark;

/* A node on which an application has, or had, executors. Immutable. */
final class PlacementNode {
  final String name;
  /* Its name, its addresses, and those of its hosts. */
  final String[] names;
  /* Whether it is blocked but stays open for tasks, so that executors on it are of use. */
  final boolean leftOpen;

  PlacementNode(String name, String[] names, boolean leftOpen) {
    this.name = name;
    this.names = names;
    this.leftOpen = leftOpen;
  }
}
