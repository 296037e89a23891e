package blocklist.spark;

import java.util.Arrays;
import java.util.Collections;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.api.plugin.SparkPlugin;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * {@code spark.plugins.defaultList=blocklist.spark.BlocklistPlugin} starts the agent in any application, also in one that
 * sets {@code spark.extraListeners} or {@code spark.plugins} itself: this list is added to its own. It starts the same
 * agent as BlocklistListener, and both together start it once.
 *
 * <p>Executors get the driver's settings, and would load this class, too: one without the jar would end, and the cluster
 * start another one without end. So the name is taken out of the driver's settings before any executor asks for them.
 *
 * <p>Nothing is thrown here, because Spark would not start the application.
 */
public final class BlocklistPlugin implements SparkPlugin {
  private static final Logger LOG = LoggerFactory.getLogger("blocklist");
  private static final String[] LISTS = {"spark.plugins.defaultList", "spark.plugins"};

  public DriverPlugin driverPlugin() {
    return new InDriver();
  }

  public ExecutorPlugin executorPlugin() {
    return null;
  }

  /** The only part: executors need none. */
  private static final class InDriver implements DriverPlugin {
    private SparkContext sc = null;

    public Map<String, String> init(SparkContext context, PluginContext plugin) {
      sc = context;
      try {
        for (String list : LISTS) hideIn(context.conf(), list);
        TrackerSlot.forgetLimits(context.conf());
      } catch (Throwable t) {
        LOG.warn("Executors load the plugin, too: they need the jar.", t);
      }
      return Collections.emptyMap();
    }

    /** Called once the scheduler is there, and before any task can start. */
    public void registerMetrics(String application, PluginContext plugin) {
      try {
        sc.addSparkListener(new BlocklistListener(sc.conf()));
      } catch (Throwable t) {
        LOG.warn("The agent is not started.", t);
      }
    }

    private static void hideIn(SparkConf conf, String list) {
      String before = conf.get(list, "");
      String own = BlocklistPlugin.class.getName();
      String after = Arrays.stream(before.split(",")).filter(name -> !name.trim().equals(own)).collect(Collectors.joining(","));
      if (after.equals(before)) return;
      if (after.isEmpty()) conf.remove(list);
      else conf.set(list, after);
    }
  }
}
