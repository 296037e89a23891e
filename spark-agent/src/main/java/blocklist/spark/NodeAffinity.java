package blocklist.spark;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
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
  static void exclude(Map pod, Collection names) {
    if (names.isEmpty()) return;
    Map required = child(child(child(child(pod, "spec"), "affinity"), "nodeAffinity"), REQUIRED);
    List terms = list(required, TERMS);
    if (terms.isEmpty()) {
      Map term = new HashMap();
      addTo(term, names);
      terms.add(term);
    } else {
      for (Iterator it = terms.iterator(); it.hasNext();) {
        Map term = (Map) it.next();
        if (!isEmpty(term)) addTo(term, names);
      }
    }
    required.put(TERMS, terms);
  }

  /* The number of terms of this pod to which nodes are added: the size of a pod grows with it. At least 1. */
  static int terms(Map pod) {
    List terms = find(pod);
    return terms == null ? 1 : Math.max(1, terms.size());
  }

  /* The names of all nodes that this pod keeps off: each of its terms excludes them. Null: it selects no node at all. */
  static Set excluded(Map pod) {
    List terms = find(pod);
    if (terms == null || terms.isEmpty()) return new HashSet();
    Set all = null;
    for (Iterator it = terms.iterator(); it.hasNext();) {
      Map term = (Map) it.next();
      if (isEmpty(term)) continue;
      Set its = new HashSet();
      addExcluded(its, term, LABELS, HOST_NAME);
      addExcluded(its, term, FIELDS, NAME);
      if (all == null) all = its;
      else all.retainAll(its);
    }
    return all;
  }

  private static List find(Map pod) {
    String[] path = {"spec", "affinity", "nodeAffinity", REQUIRED, TERMS};
    Object found = pod;
    for (int i = 0; i < path.length && found != null; i++) found = ((Map) found).get(path[i]);
    return (List) found;
  }

  private static void addTo(Map term, Collection names) {
    List labels = new ArrayList();
    List fields = list(term, FIELDS);
    for (Iterator it = names.iterator(); it.hasNext();) {
      String name = (String) it.next();
      if (name.length() <= MAX_LABEL) labels.add(name);
      List one = new ArrayList();
      one.add(name);
      fields.add(condition(NAME, one));
    }
    term.put(FIELDS, fields);
    if (labels.isEmpty()) return;
    List expressions = list(term, LABELS);
    expressions.add(condition(HOST_NAME, labels));
    term.put(LABELS, expressions);
  }

  private static Map condition(String key, List values) {
    Map condition = new HashMap();
    condition.put("key", key);
    condition.put("operator", NOT_IN);
    condition.put("values", values);
    return condition;
  }

  private static void addExcluded(Set names, Map term, String kind, String key) {
    for (Iterator it = list(term, kind).iterator(); it.hasNext();) {
      Map condition = (Map) it.next();
      if (key.equals(condition.get("key")) && NOT_IN.equals(condition.get("operator"))) names.addAll(list(condition, "values"));
    }
  }

  private static boolean isEmpty(Map term) {
    return term == null || (list(term, LABELS).isEmpty() && list(term, FIELDS).isEmpty());
  }

  private static Map child(Map parent, String name) {
    Object child = parent.get(name);
    if (child == null) parent.put(name, child = new HashMap());
    return (Map) child;
  }

  /* A copy. */
  private static List list(Map parent, String name) {
    Object list = parent.get(name);
    return list == null ? new ArrayList() : new ArrayList((List) list);
  }
}
