package blocklist.spark;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/*
 * The part of a pod that keeps it off nodes: spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution, in
 * JSON values (Map, List, String and others). Pure.
 *
 * A node is excluded by its name (the field metadata.name) and by its label kubernetes.io/hostname, because a blocked id
 * may be either, and they may differ. Kubernetes takes one value for each condition on the field, and any number for the
 * label.
 *
 * The terms are alternatives, so each of them must exclude the nodes. An empty term selects no node, and stays empty.
 */
final class NodeAffinity {
  private static final String REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution";
  private static final String TERMS = "nodeSelectorTerms";
  private static final String LABELS = "matchExpressions";
  private static final String FIELDS = "matchFields";
  private static final String HOST_NAME = "kubernetes.io/hostname";
  private static final String NAME = "metadata.name";
  private static final String NOT_IN = "NotIn";
  private static final int MAX_LABEL = 63;
  private static final int MAX_NAME = 253;
  private static final String DNS_NAME = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";

  private NodeAffinity() {}

  /* Whether Kubernetes accepts this as the name of a node: it would refuse a pod that mentions another one. */
  static boolean isNodeName(String text) {
    return text.length() <= MAX_NAME && text.matches(DNS_NAME);
  }

  /* Change this pod so that it keeps off the nodes of these names, too. Throws ClassCastException for what is no pod. */
  static void exclude(Map<String, Object> pod, Collection<String> names) {
    if (names.isEmpty()) return;
    Map<String, Object> required = child(child(child(child(pod, "spec"), "affinity"), "nodeAffinity"), REQUIRED);
    List<Object> terms = list(required, TERMS);
    if (terms.isEmpty()) {
      Map<String, Object> term = new HashMap<>();
      addTo(term, names);
      terms.add(term);
    } else {
      for (Map<String, Object> term : objects(terms)) if (!isEmpty(term)) addTo(term, names);
    }
    required.put(TERMS, terms);
  }

  /* The number of terms of this pod to which nodes are added: the size of a pod grows with it. At least 1. */
  static int terms(Map<String, Object> pod) {
    return Math.max(1, find(pod).size());
  }

  /* The names of all nodes that this pod keeps off: each of its terms excludes them. Null: it selects no node at all. */
  static Set<String> excluded(Map<String, Object> pod) {
    List<Map<String, Object>> terms = find(pod);
    if (terms.isEmpty()) return new HashSet<>();
    Set<String> all = null;
    for (Map<String, Object> term : terms) {
      if (isEmpty(term)) continue;
      Set<String> its = new HashSet<>();
      addExcluded(its, term, LABELS, HOST_NAME);
      addExcluded(its, term, FIELDS, NAME);
      if (all == null) all = its;
      else all.retainAll(its);
    }
    return all;
  }

  private static List<Map<String, Object>> find(Map<String, Object> pod) {
    Object found = pod;
    for (String name : new String[] {"spec", "affinity", "nodeAffinity", REQUIRED, TERMS})
      if (found != null) found = ((Map<?, ?>) found).get(name);
    return found == null ? new ArrayList<>() : objects((List<?>) found);
  }

  private static void addTo(Map<String, Object> term, Collection<String> names) {
    List<String> labels = new ArrayList<>();
    List<Object> fields = list(term, FIELDS);
    for (String name : names) {
      if (name.length() <= MAX_LABEL) labels.add(name);
      fields.add(condition(NAME, Collections.singletonList(name)));
    }
    term.put(FIELDS, fields);
    if (labels.isEmpty()) return;
    List<Object> expressions = list(term, LABELS);
    expressions.add(condition(HOST_NAME, labels));
    term.put(LABELS, expressions);
  }

  private static Map<String, Object> condition(String key, List<String> values) {
    Map<String, Object> condition = new HashMap<>();
    condition.put("key", key);
    condition.put("operator", NOT_IN);
    condition.put("values", values);
    return condition;
  }

  private static void addExcluded(Collection<String> names, Map<String, Object> term, String kind, String key) {
    for (Map<String, Object> condition : objects(list(term, kind)))
      if (key.equals(condition.get("key")) && NOT_IN.equals(condition.get("operator")))
        for (Object name : list(condition, "values")) names.add((String) name);
  }

  private static boolean isEmpty(Map<String, Object> term) {
    return term == null || (list(term, LABELS).isEmpty() && list(term, FIELDS).isEmpty());
  }

  @SuppressWarnings("unchecked")
  static Map<String, Object> child(Map<String, Object> parent, String name) {
    return (Map<String, Object>) parent.computeIfAbsent(name, each -> new HashMap<>());
  }

  /* A copy. */
  static List<Object> list(Map<String, Object> parent, String name) {
    Object list = parent.get(name);
    return list == null ? new ArrayList<>() : new ArrayList<>((List<?>) list);
  }

  @SuppressWarnings("unchecked")
  private static List<Map<String, Object>> objects(List<?> values) {
    return (List<Map<String, Object>>) values;
  }
}
