package blocklist.spark;

import java.util.Locale;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/*
 * How names of hosts are compared: in any case, short or full, and addresses in any spelling. The rules are those of
 * blocklist/model/names.py, which writes the keys of the table. Pure: nothing is resolved.
 */
final class HostNames {
  private static final int GROUPS = 8;

  private HostNames() {}

  /* The keys of the table under which a host with this name is found: `n7.example.com` and `n7.`. Only the name itself
     for a short name, an address, and a name that begins with a number, as addresses do. */
  static String[] keys(String name) {
    String normal = normalize(name);
    int dot = normal.indexOf('.');
    if (dot <= 0 || isNumber(normal.substring(0, dot)) || address(normal) != null) return new String[] {normal};
    return new String[] {normal, normal.substring(0, dot + 1)};
  }

  /* The name in lower case, without a final dot; an address in its shortest form. */
  static String normalize(String name) {
    String address = address(name);
    if (address != null) return address;
    String lower = name.toLowerCase(Locale.ROOT);
    int end = lower.length();
    while (end > 0 && lower.charAt(end - 1) == '.') end--;
    return end == 0 ? name : lower.substring(0, end);
  }

  private static final String ZONE = "(?:%[A-Za-z0-9._-]{1,16})?";
  private static final Pattern ADDRESS = Pattern.compile(
      "\\[([0-9A-Fa-f:.]+)" + ZONE + "\\](?::[0-9]{1,5})?"
          + "|([0-9.]+)(?::[0-9]{1,5})?"
          + "|([0-9A-Fa-f]*:[0-9A-Fa-f:.]*)" + ZONE);

  /* The shortest form of an IP address, without zone and port (IPv6 also in brackets, as Spark writes it); null for a
     name. */
  static String address(String name) {
    if (name.indexOf(':') < 0) return ipv4(name) == null ? null : name;
    Matcher match = ADDRESS.matcher(name);
    if (!match.matches()) return null;
    String bare = match.group(1) != null ? match.group(1) : match.group(2) != null ? match.group(2) : match.group(3);
    if (bare.indexOf(':') < 0) return ipv4(bare) == null ? null : bare;
    return shortest(ipv6(bare));
  }

  private static boolean isNumber(String text) {
    for (int i = 0; i < text.length(); i++) if (!Character.isDigit(text.charAt(i))) return false;
    return text.length() > 0;
  }

  /* The four bytes of an address in its only form: no leading zeros, no fewer parts. By hand: a driver with a thousand
     hosts asks thousands of times while its scheduler waits. */
  private static int[] ipv4(String text) {
    int[] bytes = new int[4];
    int at = 0;
    for (int i = 0; i < 4; i++) {
      int begin = at;
      int value = 0;
      while (at < text.length() && at - begin < 3 && isDigit(text.charAt(at))) value = 10 * value + text.charAt(at++) - '0';
      boolean hasLeadingZero = at - begin > 1 && text.charAt(begin) == '0';
      if (at == begin || hasLeadingZero || value > 255 || (at == text.length()) != (i == 3)) return null;
      if (i < 3 && text.charAt(at++) != '.') return null;
      bytes[i] = value;
    }
    return bytes;
  }

  private static boolean isDigit(char c) {
    return c >= '0' && c <= '9';
  }

  private static int[] ipv6(String text) {
    int gap = text.indexOf("::");
    if (gap < 0) return groups(text, GROUPS, GROUPS);
    int[] left = groups(text.substring(0, gap), 0, GROUPS - 1);
    int[] right = groups(text.substring(gap + 2), 0, GROUPS - 1);
    if (left == null || right == null || left.length + right.length >= GROUPS) return null;
    if (text.substring(0, gap).indexOf('.') >= 0) return null;
    int[] all = new int[GROUPS];
    System.arraycopy(left, 0, all, 0, left.length);
    System.arraycopy(right, 0, all, GROUPS - right.length, right.length);
    return all;
  }

  /* Groups of 16 bits, separated by colons; the last two may be written as an IPv4 address. */
  private static int[] groups(String text, int least, int most) {
    if (text.length() == 0) return least == 0 ? new int[0] : null;
    String[] parts = text.split(":", -1);
    int[] last = ipv4(parts[parts.length - 1]);
    int count = parts.length + (last == null ? 0 : 1);
    if (count < least || count > most) return null;
    int[] groups = new int[count];
    for (int i = 0; i < parts.length - (last == null ? 0 : 1); i++) {
      if (!parts[i].matches("[0-9a-fA-F]{1,4}")) return null;
      groups[i] = Integer.parseInt(parts[i], 16);
    }
    if (last != null) {
      groups[count - 2] = last[0] << 8 | last[1];
      groups[count - 1] = last[2] << 8 | last[3];
    }
    return groups;
  }

  /* RFC 5952: the longest run of at least two zero groups, the first of equal ones, as `::`. A mapped IPv4 address is
     that address. */
  private static String shortest(int[] groups) {
    if (groups == null) return null;
    int begin = -1;
    int length = 1;
    for (int i = 0; i < GROUPS; i++) {
      int end = i;
      while (end < GROUPS && groups[end] == 0) end++;
      if (end - i > length) {
        begin = i;
        length = end - i;
      }
    }
    if (isMapped(groups)) return (groups[6] >> 8) + "." + (groups[6] & 255) + "." + (groups[7] >> 8) + "." + (groups[7] & 255);
    StringBuilder text = new StringBuilder();
    for (int i = 0; i < GROUPS; i++) {
      if (i == begin) {
        text.append("::");
        i += length - 1;
      } else {
        if (i > 0 && i != begin + length) text.append(':');
        text.append(Integer.toHexString(groups[i]));
      }
    }
    return text.toString();
  }

  private static boolean isMapped(int[] groups) {
    for (int i = 0; i < 5; i++) if (groups[i] != 0) return false;
    return groups[5] == 0xffff;
  }
}
