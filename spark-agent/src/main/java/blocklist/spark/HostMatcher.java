package blocklist.spark;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/*
 * Finds the entries of the table that mean a host: by its name, its further names and its addresses. What means one host
 * means all hosts of its node. An address that several nodes have is ambiguous, and not used: a name server that resolves
 * all names to one page must not block the cluster. The cost is a look-up for each key of each name, whatever the size of
 * the table.
 */
final class HostMatcher {
  private static final String SEVERAL = "";

  private final Table table;
  private final long now;
  private final Map<String, String> ownerByAddress = new HashMap<>();
  /* Node to its LiveHosts, and to its entries once they have been looked up. */
  private final Map<String, List<LiveHost>> hostsByNode = new HashMap<>();
  private final Map<String, List<Table.Entry>> entriesByNode = new HashMap<>();

  HostMatcher(Table table, List<LiveHost> hosts, long now) {
    this.table = table;
    this.now = now;
    for (LiveHost host : hosts) {
      hostsByNode.computeIfAbsent(host.node, node -> new ArrayList<>(1)).add(host);
      claim(host.name, host);
      for (int i = 0; host.names != null && i < host.names.length; i++) claim(host.names[i], host);
    }
  }

  private void claim(String name, LiveHost host) {
    String address = HostNames.address(name);
    if (address == null) return;
    Object before = ownerByAddress.put(address, host.node);
    if (before != null && !before.equals(host.node)) ownerByAddress.put(address, SEVERAL);
  }

  /* The block of this host, one of those that were given; null if no current entry matches it. */
  HostBlock blockOf(LiveHost host) {
    List<Table.Entry> entries = entriesByNode.get(host.node);
    if (entries == null) {
      entries = new ArrayList<>();
      for (LiveHost each : hostsByNode.get(host.node)) addEntries(each, entries);
      entriesByNode.put(host.node, entries);
    }
    return entries.isEmpty() ? null : new HostBlock(host.name, host.node, entries);
  }

  /* The block of a host beside those that were given. An address is its own unless one of them has it, on another node. */
  HostBlock blockOfFurther(LiveHost host) {
    List<Table.Entry> entries = new ArrayList<>();
    addEntries(host, entries);
    for (LiveHost each : hostsByNode.getOrDefault(host.node, Collections.emptyList())) addEntries(each, entries);
    return entries.isEmpty() ? null : new HostBlock(host.name, host.node, entries);
  }

  private void addEntries(LiveHost host, List<Table.Entry> entries) {
    addEntries(host.name, entries);
    for (int i = 0; host.names != null && i < host.names.length; i++) {
      String address = HostNames.address(host.names[i]);
      Object owner = address == null ? null : ownerByAddress.get(address);
      if (owner == null || owner.equals(host.node)) addEntries(host.names[i], entries);
    }
  }

  private void addEntries(String name, List<Table.Entry> entries) {
    for (String key : HostNames.keys(name)) {
      Table.Entry entry = table.current(key, now);
      if (entry != null && !entries.contains(entry)) entries.add(entry);
    }
  }
}
