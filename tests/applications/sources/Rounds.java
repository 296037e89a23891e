import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.Collections;
import java.util.TreeSet;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.SparkSession;

/*
 * Rounds COMMANDS RESULTS: for each line of COMMANDS, runs 24 tasks and appends to RESULTS on which hosts they ran.
 * Tasks on the host that the line names take ten minutes; a number behind that name is the number of tasks. `exit N` ends
 * it. It uses nothing of the blocklist.
 */
public class Rounds {
  public static void main(String[] arguments) throws Exception {
    SparkSession spark = SparkSession.builder().appName("java").getOrCreate();
    JavaSparkContext context = new JavaSparkContext(spark.sparkContext());
    Path results = Paths.get(arguments[1]);
    for (String line : (Iterable<String>) Files.newBufferedReader(Paths.get(arguments[0])).lines()::iterator) {
      String[] words = line.split(" ");
      if (words[0].equals("exit")) System.exit(Integer.parseInt(words[1]));
      int tasks = words.length > 1 ? Integer.parseInt(words[1]) : 24;
      TreeSet<String> hosts = new TreeSet<>(context.parallelize(Collections.nCopies(tasks, words[0]), tasks).map(Rounds::runOn).collect());
      String result = "ROUND " + tasks + " " + String.join(" ", hosts) + "\n";
      Files.write(results, result.getBytes(), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }
    spark.stop();
  }

  private static String runOn(String slow) throws Exception {
    String host = host();
    Thread.sleep(host.equals(slow) ? 600000L : 50L);
    return host;
  }

  /* Kubernetes and YARN name the host of a container; standalone workers here have theirs in Spark's variable. */
  private static String host() {
    if (System.getenv("NODE_NAME") != null) return System.getenv("NODE_NAME");
    return String.valueOf(System.getenv(System.getenv("NM_HOST") != null ? "NM_HOST" : "SPARK_LOCAL_IP"));
  }
}
