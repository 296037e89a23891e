package blocklist.spark;

import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.fabric8.kubernetes.api.model.DeleteOptions;
import io.fabric8.kubernetes.api.model.ObjectMeta;
import io.fabric8.kubernetes.api.model.Pod;
import io.fabric8.kubernetes.api.model.PodStatus;
import io.fabric8.kubernetes.api.model.Preconditions;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientException;
import io.fabric8.kubernetes.client.utils.Serialization;
import java.util.HashMap;
import java.util.Map;

/**
 * Pods of the Kubernetes client that Spark ships. Only this class and PodTemplateFile are linked with it: they are loaded
 * on Kubernetes alone.
 */
final class PodReader {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final String[] NONE = {};

  private PodReader() {}

  static ExecutorPods.Pod read(long id, Object object) {
    Pod pod = (Pod) object;
    String node = pod.getSpec() == null ? null : pod.getSpec().getNodeName();
    PodStatus status = pod.getStatus();
    String host = status == null ? null : status.getHostIP();
    String own = status == null ? null : status.getPodIP();
    boolean ending = pod.getMetadata().getDeletionTimestamp() != null || hasEnded(status);
    return new ExecutorPods.Pod(id, pod.getMetadata().getName(), isEmpty(node) ? null : node, addresses(host), addresses(own), ending,
      isUnschedulable(status), pod);
  }

  /** What the pod requires of its node: its affinity as JSON values. */
  static Map<String, Object> affinity(Object pod) throws Exception {
    Map<String, Object> spec = new HashMap<>();
    Object affinity = ((Pod) pod).getSpec().getAffinity();
    if (affinity != null) spec.put("affinity", map(affinity));
    Map<String, Object> found = new HashMap<>();
    found.put("spec", spec);
    return found;
  }

  /** An object of the client as JSON values. */
  static Map<String, Object> map(Object object) throws Exception {
    return map(Serialization.asJson(object));
  }

  static Map<String, Object> map(String json) throws Exception {
    return JSON.readValue(json, new TypeReference<Map<String, Object>>() {});
  }

  static String json(Map<String, Object> values) throws Exception {
    return JSON.writeValueAsString(values);
  }

  /**
   * Delete this very pod, and not one that was made since with its name: that one has another uid. Does nothing if it is
   * gone. The client's own way to delete takes no such condition.
   */
  static void delete(Object client, Object object) {
    ObjectMeta pod = ((Pod) object).getMetadata();
    Preconditions same = new Preconditions();
    same.setUid(pod.getUid());
    DeleteOptions options = new DeleteOptions();
    options.setPreconditions(same);
    try {
      ((KubernetesClient) client).raw("/api/v1/namespaces/" + pod.getNamespace() + "/pods/" + pod.getName(), "DELETE", options);
    } catch (KubernetesClientException e) {
      if (e.getCode() != 404 && e.getCode() != 409) throw e;
    }
  }

  private static boolean hasEnded(PodStatus status) {
    String phase = status == null ? null : status.getPhase();
    return "Succeeded".equals(phase) || "Failed".equals(phase);
  }

  private static boolean isUnschedulable(PodStatus status) {
    if (status == null || status.getConditions() == null) return false;
    return status.getConditions().stream().anyMatch(it -> "PodScheduled".equals(it.getType()) && "False".equals(it.getStatus()));
  }

  private static String[] addresses(String address) {
    return isEmpty(address) ? NONE : new String[] {HostNames.normalize(address)};
  }

  private static boolean isEmpty(String text) {
    return text == null || text.length() == 0;
  }
}
