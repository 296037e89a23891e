package blocklist.spark;

import java.lang.reflect.Method;

/** Calls what Spark does not publish. */
final class Reflection {
  private Reflection() {}

  /** Call a public method without parameters, whose class may be private. */
  static Object call(Object target, String method) throws Exception {
    Method found = target.getClass().getMethod(method, new Class[0]);
    found.setAccessible(true);
    return found.invoke(target, new Object[0]);
  }
}
