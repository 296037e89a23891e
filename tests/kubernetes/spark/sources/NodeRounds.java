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
 * NodeRounds COMMANDS RESULTS: for each line of COMMANDS, a number of tasks and the name of a node, runs so many tasks and
 * appends to RESULTS on which nodes they ran. Tasks on the named node take ten minutes. For Janino: no lambdas.
 */
public class NodeRounds {
  public static class Node implements Function, Serializable {
    private final String slow;

    public Node(String slow) {
      this.slow = slow;
    }

    public Object call(Object number) throws Exception {
      String node = String.valueOf(System.getenv("NODE_NAME"));
      Thread.sleep(node.equals(slow) ? 600000L : 50L);
      return node;
    }
  }

  public static void main(String[] arguments) throws Exception {
    SparkSession spark = SparkSession.builder().appName("rounds").getOrCreate();
    JavaSparkContext context = new JavaSparkContext(spark.sparkContext());
    BufferedReader commands = new BufferedReader(new FileReader(arguments[0]));
    for (String line = commands.readLine(); line != null; line = commands.readLine()) {
      String[] words = line.split(" ", 2);
      int tasks = Integer.parseInt(words[0]);
      List nodes = context.parallelize(numbers(tasks), tasks).map(new Node(words[1])).collect();
      StringBuilder result = new StringBuilder("ROUND " + nodes.size());
      for (Iterator each = new TreeSet(nodes).iterator(); each.hasNext();) result.append(" ").append(each.next());
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
