package blocklist.spark;

import java.util.Collection;

/* All hosts have these names; null: they are not known. */
final class GivenNames implements HostDirectory {
  String[] known;

  GivenNames(String[] known) {
    this.known = known;
  }

  public String[] names(String host) {
    return known;
  }

  public String[] machineNames(String host) {
    return known;
  }

  public long overdue(String host) {
    return 0;
  }

  public boolean isPending(String host) {
    return known == null;
  }

  public void retain(Collection<String> hosts) {}
}
