import java.io.BufferedReader;
import java.io.FileReader;
import java.io.FileWriter;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.TreeSet;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.api.java.function.Function;
import org.apache.spark.sql.SparkSession;

/*
 * Rounds COMMANDS RESULTS: for each line of COMMANDS, runs 24 tasks and appends to RESULTS on which hosts they ran.
 * Tasks on the host that the line names take ten minutes; a number behind that name is the number of tasks. It uses
 * nothing of the blocklist. For Janino: no lambdas.
 */
public class Rounds {
  public static class Host implements Function, Serializable {
    private final String slow;

    public Host(String slow) {
      this.slow = slow;
    }

    public Object call(Object number) throws Exception {
      String host = host();
      Thread.sleep(host.equals(slow) ? 600000L : 50L);
      return host;
    }
  }

  /* Kubernetes and YARN name the host of a container; standalone workers here have theirs in Spark's variable. */
  private static String host() {
    if (System.getenv("NODE_NAME") != null) return System.getenv("NODE_NAME");
    return String.valueOf(System.getenv(System.getenv("NM_HOST") != null ? "NM_HOST" : "SPARK_LOCAL_IP"));
  }

  public static void main(String[] arguments) throws Exception {
    SparkSession spark = SparkSession.builder().appName("java").getOrCreate();
    JavaSparkContext context = new JavaSparkContext(spark.sparkContext());
    BufferedReader commands = new BufferedReader(new FileReader(arguments[0]));
    for (String line = commands.readLine(); line != null; line = commands.readLine()) {
      String[] words = line.split(" ");
      int tasks = words.length > 1 ? Integer.parseInt(words[1]) : 24;
      List hosts = context.parallelize(numbers(tasks), tasks).map(new Host(words[0])).collect();
      StringBuilder result = new StringBuilder("ROUND " + hosts.size());
      for (Iterator each = new TreeSet(hosts).iterator(); each.hasNext();) result.append(" ").append(each.next());
      FileWriter results = new FileWriter(arguments[1], true);
      results.write(result.append("\n").toString());
      results.close();
    }
    spark.stop();
  }

  private static List numbers(int count) {
    List numbers = new ArrayList();
    for (int i = 0; i < count; i++) numbers.add(Integer.valueOf(i));
    return numbers;
  }
}
