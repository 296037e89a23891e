import java.util.Collections;
import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.api.plugin.SparkPlugin;
import org.slf4j.LoggerFactory;

/* A plugin that a job has itself. The driver logs each executor in which it runs. */
public class JobPlugin implements SparkPlugin {
  public DriverPlugin driverPlugin() {
    return new DriverPlugin() {
      public Map<String, String> init(SparkContext context, PluginContext plugin) {
        return Collections.emptyMap();
      }

      public Object receive(Object executor) {
        LoggerFactory.getLogger(JobPlugin.class).warn("runs in executor {}", executor);
        return null;
      }
    };
  }

  public ExecutorPlugin executorPlugin() {
    return new ExecutorPlugin() {
      public void init(PluginContext plugin, Map<String, String> settings) {
        try {
          plugin.send(plugin.executorID());
        } catch (Exception e) {
          throw new IllegalStateException(e);
        }
      }
    };
  }
}
