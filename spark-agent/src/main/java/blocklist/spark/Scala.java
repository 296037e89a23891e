package blocklist.spark;

import java.lang.reflect.Method;
import java.util.Iterator;

/** What Scala does not offer to Java. Of its collections only the iterators are the same in Scala 2.12 and 2.13. */
final class Scala {
  private Scala() {}

  /** For one loop. */
  static <T> Iterable<T> each(scala.collection.Iterator<T> elements) {
    return () -> new Iterator<T>() {
      public boolean hasNext() {
        return elements.hasNext();
      }

      public T next() {
        return elements.next();
      }
    };
  }

  static <T> T orNull(scala.Option<T> option) {
    return option.isDefined() ? option.get() : null;
  }

  /** Call a public method without parameters, whose class may be private. */
  static Object call(Object target, String method) throws Exception {
    Method found = target.getClass().getMethod(method);
    found.setAccessible(true);
    return found.invoke(target);
  }
}
