package blocklist.spark;

import java.util.Collection;
import java.util.Map;
import java.util.stream.Collectors;

/** Writes JSON. */
final class Json {
  private Json() {}

  /** A text; what the service would reject becomes a question mark. */
  static String text(String text) {
    StringBuilder out = new StringBuilder("\"");
    for (int i = 0; i < text.length(); i++) {
      char c = text.charAt(i);
      if (c == '"' || c == '\\') out.append('\\').append(c);
      else out.append(Character.isISOControl(c) || Character.isSurrogate(c) ? '?' : c);
    }
    return out.append('"').toString();
  }

  /** An object from names to values that are JSON already. */
  static String object(Map<String, String> members) {
    return members.entrySet().stream().map(member -> text(member.getKey()) + ":" + member.getValue()).collect(Collectors.joining(",", "{", "}"));
  }

  /** An array of values that are JSON already. */
  static String array(Collection<String> values) {
    return "[" + String.join(",", values) + "]";
  }
}
