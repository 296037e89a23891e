package blocklist.spark;

import io.fabric8.kubernetes.client.KubernetesClient;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.SparkConf;
import org.apache.spark.deploy.k8s.KubernetesUtils;
import org.apache.spark.deploy.k8s.SparkPod;

/**
 * The template of new executors' pods: the user's own, changed to keep off nodes. Spark reads the setting and the file for
 * each pod, and makes none while it cannot read the file. So a file is read back before it takes the place of another,
 * and the user's setting is restored whenever something fails.
 *
 * <p>THREADING: it has its own monitor.
 */
final class PodTemplateFile {
  private static final String SETTING = "spark.kubernetes.executor.podTemplateFile";
  private static final String CONTAINER = "spark.kubernetes.executor.podTemplateContainerName";
  private static final String CONTAINERS = "containers";
  private static final long CACHE_MILLIS = 10000;

  private final SparkConf conf;
  private final Object client;
  private File file = null;
  private String own = null;
  /** The user's setting; null without one, or before it is known. */
  private String users = null;
  private Collection<String> names = new ArrayList<>();
  private long length = 0;
  private long modified = 0;
  private boolean closed = false;
  /** The user's template as JSON, with its setting, and until when it counts: each reading costs Spark a folder. */
  private String cached = null;
  private String cachedSetting = null;
  private long cachedUntil = 0;

  PodTemplateFile(SparkConf conf, Object client) {
    this.conf = conf;
    this.client = client;
  }

  /** The number of alternatives that the user's template has for nodes; at least 1. Throws if it cannot be read. */
  synchronized int terms() throws Exception {
    return NodeAffinity.terms(usersPod());
  }

  /** Make new pods keep off the nodes of these names, and no others. Returns whether something has changed. */
  synchronized boolean put(Collection<String> names) throws Exception {
    if (closed || names.isEmpty()) return restore();
    boolean replaced = !present().equals(own == null ? "" : own);
    if (!replaced && names.equals(this.names) && isIntact()) return false;
    if (replaced) users = present().length() == 0 ? null : present();
    Map<String, Object> pod = usersPod();
    NodeAffinity.exclude(pod, names);
    write(PodReader.json(pod), names);
    conf.set(SETTING, own);
    this.names = new ArrayList<>(names);
    return true;
  }

  /** Restore the user's setting. Returns whether it was another one. */
  synchronized boolean restore() {
    names = new ArrayList<>();
    if (own == null || !own.equals(present())) return false;
    if (users == null) conf.remove(SETTING);
    else conf.set(SETTING, users);
    return true;
  }

  /** Restore the user's setting, for good. */
  synchronized void close() {
    closed = true;
    restore();
  }

  /** After {@code close}, once Spark does not read the file any more. */
  synchronized void delete() {
    if (file == null) return;
    file.delete();
    file.getParentFile().delete();
  }

  private String present() {
    return conf.get(SETTING, "");
  }

  private boolean isIntact() {
    return file.length() == length && file.lastModified() == modified;
  }

  private Map<String, Object> usersPod() throws Exception {
    String present = present();
    String setting = present.equals(own == null ? "" : own) ? users : present;
    if (setting != null && setting.length() > 0) return cached(setting);
    Map<String, Object> pod = new HashMap<>();
    pod.put("apiVersion", "v1");
    pod.put("kind", "Pod");
    pod.put("spec", new HashMap<>());
    return pod;
  }

  private Map<String, Object> cached(String setting) throws Exception {
    long now = Times.monotonic();
    if (cached == null || !setting.equals(cachedSetting) || now >= cachedUntil) {
      cached = PodReader.json(load(setting));
      cachedSetting = setting;
      cachedUntil = now + CACHE_MILLIS;
    }
    return PodReader.map(cached);
  }

  /** As Spark does. It takes the container of the executor out. */
  private Map<String, Object> load(String setting) throws Exception {
    SparkPod found;
    try {
      found = KubernetesUtils.loadPodFromTemplate((KubernetesClient) client, setting, conf.getOption(CONTAINER), conf);
    } catch (Exception e) {
      throw new IOException("the pod template " + setting + " cannot be read: " + cause(e), e);
    }
    Map<String, Object> pod = PodReader.map(found.pod());
    Map<String, Object> container = PodReader.map(found.container());
    Map<String, Object> spec = NodeAffinity.child(pod, "spec");
    List<Object> containers = NodeAffinity.list(spec, CONTAINERS);
    if (!container.isEmpty()) containers.add(0, container);
    spec.put(CONTAINERS, containers);
    return pod;
  }

  private void write(String text, Collection<String> names) throws Exception {
    if (file == null) create();
    File aside = new File(file.getParentFile(), "pod-template.new");
    try {
      Files.write(aside.toPath(), text.getBytes(StandardCharsets.UTF_8));
      Set<String> excluded = NodeAffinity.excluded(load(aside.toURI().toString()));
      if (excluded != null && !excluded.containsAll(names)) throw new IOException("Spark reads other nodes from it");
      Files.move(aside.toPath(), file.toPath(), StandardCopyOption.REPLACE_EXISTING, StandardCopyOption.ATOMIC_MOVE);
    } catch (IOException e) {
      throw new IOException("the pod template " + file + " cannot be written: " + cause(e), e);
    }
    length = file.length();
    modified = file.lastModified();
  }

  /** Only the driver's user may read it: the user's template may contain secrets. */
  private void create() throws IOException {
    String[] folders = folders();
    IOException failure = null;
    for (String each : folders) {
      if (file != null) return;
      try {
        File folder = Files.createTempDirectory(new File(each).getAbsoluteFile().toPath(), "blocklist-").toFile();
        folder.deleteOnExit();
        file = new File(folder, "pod-template.json");
        file.deleteOnExit();
        own = file.toURI().toString();
      } catch (IOException e) {
        failure = e;
      }
    }
    if (file == null) throw new IOException("no folder for a pod template can be written, such as " + folders[0] + ": " + failure, failure);
  }

  private String[] folders() {
    String local = System.getenv("SPARK_LOCAL_DIRS");
    String all = System.getProperty("java.io.tmpdir") + "," + (local == null ? conf.get("spark.local.dir", ".") : local);
    return all.split(",");
  }

  private static String cause(Throwable t) {
    Throwable last = t;
    while (last.getCause() != null) last = last.getCause();
    return last.getMessage() == null ? last.toString() : last.getMessage();
  }
}
