package blocklist.spark;

import java.util.Collection;
import java.util.Iterator;
import java.util.Map;

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
  static String object(Map members) {
    StringBuilder out = new StringBuilder("{");
    for (Iterator it = members.entrySet().iterator(); it.hasNext();) {
      Map.Entry member = (Map.Entry) it.next();
      out.append(text((String) member.getKey())).append(':').append(member.getValue());
      if (it.hasNext()) out.append(',');
    }
    return out.append('}').toString();
  }

  /** An array of values that are JSON already. */
  static String array(Collection values) {
    StringBuilder out = new StringBuilder("[");
    for (Iterator it = values.iterator(); it.hasNext();) {
      out.append(it.next());
      if (it.hasNext()) out.append(',');
    }
    return out.append(']').toString();
  }
}
