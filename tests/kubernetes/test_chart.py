"""What the chart in deploy/helm/ renders: values that it refuses, and objects that the API server accepts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from blocklist.flink.__main__ import build_parser as bridge_parser
from blocklist.managers.options import build_parser
from tests.integration.process import ROOT
from tests.kubernetes import page
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.helm_program import CHART, Helm, HelmError
from tests.kubernetes.manager import RULES

Json = dict[str, Any]

POSTGRESQL = ("database.secretName=db", "replicas=2")
POSTGRESQL_FILES = ("database.secretName=blocklist-database", "replicas=2")
MANAGER = "kubernetesManager.enabled=true"
YARN = ("yarnManager.enabled=true", "yarnManager.resourceManagers[0]=http://rm1:8088")
FLINK = ("flinkBridge.enabled=true", "flinkBridge.image=flink:b", "flinkBridge.configMapName=flink-config-a")
REQUIRED = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
TERM = f"{REQUIRED}.nodeSelectorTerms[0].matchExpressions[0]"
PRODUCTION = "values-production.yaml"
OPTIONS: dict[str, tuple[str, ...]] = {
    "SQLite": (),
    "PostgreSQL": POSTGRESQL,
    "another key, no budget": (*POSTGRESQL, "database.key=uri", "podDisruptionBudget.enabled=false"),
    "a mounted URL": (*POSTGRESQL, "database.asFile=true"),
    "a URL of Vault": ("database.file=/vault/secrets/database", "replicas=2"),
    "a volume that exists": ("volume.existingClaim=mine",),
    "a class, not kept": ("volume.storageClassName=fast", "volume.size=20Gi", "volume.keep=false"),
    "an admin's token": ("adminToken.secretName=admin", "serviceAccountTokens.enabled=false"),
    "roles": (r"serviceAccountTokens.roles.spark/*=listener", "serviceAccountTokens.audience=https://b.example"),
    "settings": ("settings.MAX_BLOCKED_SHARE=0.2", "settings.FAST_PATH=false", "settingsSecretName=more"),
    "TLS": ("tls.secretName=tls", "service.port=443", MANAGER),
    "ingress": ("ingress.enabled=true", "ingress.host=b.example", "ingress.tlsSecretName=t", "ingress.className=nginx"),
    "ingress with a path": ("ingress.enabled=true", "ingress.host=b.example", "ingress.path=/tools/bl/", MANAGER),
    "a network policy": ("networkPolicy.from[0].namespaceSelector.matchLabels.team=data", MANAGER),
    "no network policy": ("networkPolicy.enabled=false",),
    "monitoring": ("serviceMonitor.enabled=true", "serviceMonitor.tokenSecretName=p", "serviceMonitor.labels.release=p",
                   "prometheusRule.enabled=true", "prometheusRule.labels.release=p"),
    "the manager": (MANAGER, "kubernetesManager.replicas=2", "kubernetesManager.taint=example.com/bad"),
    "the manager with all": (MANAGER, "kubernetesManager.evict.enabled=true", "kubernetesManager.mirrorCordons=true",
                             "kubernetesManager.evict.selector=app=a", "kubernetesManager.tokenSecretName=token"),
    "pods": ("nodeSelector.disk=ssd", "priorityClassName=system-cluster-critical", "image.pullSecrets[0]=pull",
             "service.listen=::", "service.ipFamilyPolicy=PreferDualStack", "tolerations[0].key=infra",
             "tolerations[0].operator=Exists", "podAnnotations.a=b", "fullnameOverride=bl", "podLabels.team=data",
             "podLabels.app\\.kubernetes\\.io/name=mine", MANAGER, *YARN, *FLINK,
             f"{TERM}.key=disk", f"{TERM}.operator=Exists"),
    "what a cluster adds": (MANAGER, *YARN, *FLINK, *(
        f"{of}{value}" for of in ("", "kubernetesManager.", "yarnManager.", "flinkBridge.") for value in (
        "extraEnv[0].name=HTTPS_PROXY", "extraEnv[0].value=http://proxy:3128", "extraVolumes[0].name=more",
        "extraVolumes[0].configMap.name=more", "extraVolumeMounts[0].name=more", "extraVolumeMounts[0].mountPath=/more",
        "initContainers[0].name=wait", "initContainers[0].image=busybox",
        "initContainers[0].securityContext.allowPrivilegeEscalation=false",
        "initContainers[0].securityContext.capabilities.drop[0]=ALL", "serviceAccountAnnotations.role=db"))),
    "authorities and nodes": ("caBundle.configMapName=ca", "nodesFile.csv=id\nw-1\n", *YARN, *FLINK, MANAGER),
    "nodes of somebody else": ("nodesFile.configMapName=inventory", "nodesFile.key=all.csv"),
    "YARN with a keytab": (
        *YARN, "yarnManager.image=with-kerberos:1", "yarnManager.user=", "yarnManager.args[0]=--kerberos",
        "yarnManager.extraEnv[0].name=KRB5_CLIENT_KTNAME", "yarnManager.extraEnv[0].value=/keytab/yarn.keytab",
        "yarnManager.extraVolumes[0].name=keytab", "yarnManager.extraVolumes[0].secret.secretName=keytab",
        "yarnManager.extraVolumeMounts[0].name=keytab", "yarnManager.extraVolumeMounts[0].mountPath=/keytab",
        "yarnManager.tokenSecretName=token", "yarnManager.serviceAccountAnnotations.a=b"),
    "Flink": (*FLINK, "networkPolicy.from[0].namespaceSelector.matchLabels.team=data"),
}  # fmt: skip


@pytest.fixture(scope="module")
def target(cluster: Cluster) -> None:
    """A namespace as docs/kubernetes-service.md makes it: it admits only pods of the standard `restricted`."""
    restricted_namespace(cluster, "chart")


def restricted_namespace(cluster: Cluster, name: str) -> str:
    cluster.make_namespace(name)
    label = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", name, label, label.replace("enforce", "warn"))
    return name


@pytest.fixture(scope="module")
def objects(rendering: Helm) -> dict[str, str]:
    found = {name: rendering.render(*values, namespace="chart") for name, values in OPTIONS.items()}
    production = ("--values", str(CHART / PRODUCTION), "--namespace", "chart")
    return {**found, PRODUCTION: rendering.run("template", "blocklist", str(CHART), *production)}


@pytest.mark.usefixtures("operator", "target")
def test_the_api_server_accepts_all_options(cluster: Cluster, objects: dict[str, str]) -> None:
    """Strictly, so that a mistyped field is an error, and without a warning that a pod would not be admitted.

    Options share objects: each that differs is sent once.
    """
    found = [each for text in objects.values() for each in yaml.safe_load_all(text) if each]
    different = {json.dumps(each): each for each in found}.values()
    body = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(different)})
    dry_run = ("--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    printed = cluster.kubectl("apply", *dry_run, stdin=body)
    assert "Warning" not in printed, printed
    assert len(printed.splitlines()) == len(different)


@pytest.mark.usefixtures("target")
def test_that_namespace_is_strict(cluster: Cluster, objects: dict[str, str]) -> None:
    """The same Deployment without its security context would get a warning, and its pod would not be admitted."""
    deployment = find(objects["PostgreSQL"], "Deployment")
    assert deployment is not None
    del deployment["spec"]["template"]["spec"]["securityContext"]
    options = ["--server-side", "--dry-run=server", "-n", "chart", "-f", "-"]
    assert "would violate PodSecurity" in cluster.kubectl("apply", *options, stdin=json.dumps(deployment))
    spec = deployment["spec"]["template"]["spec"] | {"serviceAccountName": "default"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    printed = cluster.kubectl("apply", *options, stdin=json.dumps(pod), check=False)
    assert 'violates PodSecurity "restricted:latest"' in printed


def find(objects: str, kind: str, name: str | None = None) -> Json | None:
    """The object of this kind (and name), None if there is none."""
    for each in yaml.safe_load_all(objects):
        if each and each["kind"] == kind and name in (None, each["metadata"]["name"]):
            found: Json = each
            return found
    return None


def environment(objects: str, kind: str = "StatefulSet") -> dict[str, str]:
    found = find(objects, kind)
    assert found is not None
    return {it["name"]: it.get("value", "") for it in found["spec"]["template"]["spec"]["containers"][0]["env"]}


def test_what_is_switched_on_is_there_and_nothing_else(objects: dict[str, str]) -> None:
    on_postgresql = {"PostgreSQL", "another key, no budget", "a mounted URL", "a URL of Vault"}
    expected = {
        "StatefulSet": {*OPTIONS} - on_postgresql,
        "ConfigMap": {"authorities and nodes"},
        "PersistentVolumeClaim": {*OPTIONS} - on_postgresql - {"a volume that exists"},
        "PodDisruptionBudget": {*on_postgresql, PRODUCTION} - {"another key, no budget"},
        "NetworkPolicy": {*OPTIONS, PRODUCTION} - {"no network policy"},
        "Ingress": {"ingress", "ingress with a path", PRODUCTION},
        "ServiceMonitor": {"monitoring", PRODUCTION},
        "PrometheusRule": {"monitoring", PRODUCTION},
        "ClusterRole": {name for name, values in OPTIONS.items() if MANAGER in values} | {PRODUCTION},
    }
    found = {kind: {name for name, text in objects.items() if find(text, kind)} for kind in expected}
    assert found == expected


def test_values_become_the_settings_that_they_mean(objects: dict[str, str]) -> None:
    settings = environment(objects["settings"])
    assert settings["BLOCKLIST_MAX_BLOCKED_SHARE"] == "0.2"
    assert settings["BLOCKLIST_FAST_PATH"] == "false"
    roles = environment(objects["roles"])["BLOCKLIST_SERVICE_ACCOUNT_ROLES"].split(",")
    assert roles == ["chart/blocklist-admin=admin", "spark/*=listener"]
    assert "BLOCKLIST_SERVICE_ACCOUNT_ROLES" not in environment(objects["an admin's token"])
    assert "chart/blocklist-manager=manager" in environment(objects["TLS"])["BLOCKLIST_SERVICE_ACCOUNT_ROLES"]
    all_of_it = environment(objects["the manager with all"])["BLOCKLIST_SERVICE_ACCOUNT_ROLES"]
    assert "manager" not in all_of_it, "it has a token of its own"
    assert environment(objects["PostgreSQL"], "Deployment")["BLOCKLIST_ADMIN_TOKEN_FILE"] == ""


def test_a_url_in_a_file_takes_the_place_of_that_of_the_image(objects: dict[str, str], rendering: Helm) -> None:
    mounted = environment(objects["a mounted URL"], "Deployment")
    assert mounted["BLOCKLIST_DATABASE_URL_FILE"] == "/etc/blocklist/database/url"
    volumes = pod_spec(objects["a mounted URL"], "Deployment")["volumes"]
    secret = {"secretName": "db", "defaultMode": 0o440, "items": [{"key": "url", "path": "url"}]}
    assert {"name": "database", "secret": secret} in volumes
    given = environment(objects["a URL of Vault"], "Deployment")
    assert given["BLOCKLIST_DATABASE_URL_FILE"] == "/vault/secrets/database"
    assert mounted["BLOCKLIST_DATABASE_URL"] == given["BLOCKLIST_DATABASE_URL"] == ""
    assert "BLOCKLIST_DATABASE_URL_FILE" not in environment(objects["PostgreSQL"], "Deployment")
    with pytest.raises(HelmError, match="give secretName or file, not both"):
        rendering.render("database.file=/a", *POSTGRESQL)


def test_the_path_of_the_ingress_is_that_of_the_service(objects: dict[str, str], rendering: Helm) -> None:
    text = objects["ingress with a path"]
    ingress = find(text, "Ingress")
    assert ingress is not None
    (path,) = ingress["spec"]["rules"][0]["http"]["paths"]
    assert (path["path"], path["pathType"]) == ("/tools/bl/", "Prefix")
    assert environment(text)["BLOCKLIST_ROOT_PATH"] == "/tools/bl"
    manager = environment(text, "Deployment")
    assert manager["BLOCKLIST_URL"] == "http://blocklist.chart.svc:8224", "inside the cluster nothing is in front"
    assert "BLOCKLIST_ROOT_PATH" not in environment(objects["ingress"])
    with pytest.raises(HelmError, match=r"settings\.ROOT_PATH: ingress\.path sets it"):
        rendering.render(*OPTIONS["ingress with a path"], "settings.ROOT_PATH=/b")


def workloads(objects: str) -> dict[str, Json]:
    """The StatefulSet or Deployment of each component, by the name of its ServiceAccount."""
    found = [each for each in yaml.safe_load_all(objects) if each and each["kind"] in {"Deployment", "StatefulSet"}]
    return {each["spec"]["template"]["spec"]["serviceAccountName"]: each for each in found}


def test_what_a_cluster_adds_is_in_all_pods(objects: dict[str, str]) -> None:
    """In those of the migration as well, which needs the same database; labels of the chart cannot be replaced."""
    text = objects["what a cluster adds"]
    for name, each in workloads(text).items():
        spec = each["spec"]["template"]["spec"]
        assert spec["initContainers"].pop(0)["name"] == "wait"
        assert [it["name"] for it in spec["initContainers"]] == (["migrate"] if name == "blocklist" else [])
        assert {"name": "more", "configMap": {"name": "more"}} in spec["volumes"]
        for container in (*spec["initContainers"], *spec["containers"]):
            assert {"name": "HTTPS_PROXY", "value": "http://proxy:3128"} in container["env"], name
            assert {"name": "more", "mountPath": "/more"} in container["volumeMounts"], name
        account = find(text, "ServiceAccount", name)
        assert account is not None
        assert account["metadata"]["annotations"] == {"role": "db"}
    found = workloads(objects["pods"])
    assert len(found) == len(workloads(text)) == 4
    for name, each in found.items():
        meta, spec = each["spec"]["template"]["metadata"], each["spec"]["template"]["spec"]
        assert (meta["labels"]["team"], meta["labels"]["app.kubernetes.io/name"]) == ("data", "blocklist"), name
        assert meta["annotations"] == {"a": "b"}
        assert "nodeAffinity" in spec["affinity"]
        assert (spec["nodeSelector"], spec["priorityClassName"]) == ({"disk": "ssd"}, "system-cluster-critical")
        assert spec["imagePullSecrets"] == [{"name": "pull"}]
        assert "infra" in [it["key"] for it in spec["tolerations"]]


def test_the_authorities_and_the_nodes_are_where_they_are_looked_for(objects: dict[str, str]) -> None:
    text = objects["authorities and nodes"]
    service, file = pod_spec(text, "StatefulSet"), "/etc/blocklist/ca/ca.crt"
    for container in (service["initContainers"][0], service["containers"][0]):
        variables = {each["name"]: each.get("value") for each in container["env"]}
        assert {variables[name] for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PGSSLROOTCERT")} == {file}
        assert variables["BLOCKLIST_NODES_FILE"] == "/etc/blocklist/nodes/nodes.csv"
        mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        assert (mounts["/etc/blocklist/ca"], mounts["/etc/blocklist/nodes"]) == ("ca", "nodes")
    nodes = find(text, "ConfigMap", "blocklist-nodes")
    assert nodes is not None
    assert nodes["data"] == {"nodes.csv": "id\nw-1\n"}
    others = pod_spec(objects["nodes of somebody else"], "StatefulSet")["volumes"]
    assert {
        "name": "nodes",
        "configMap": {"name": "inventory", "items": [{"key": "all.csv", "path": "nodes.csv"}]},
    } in others
    found = workloads(text)
    assert len(found) == 4
    for name, each in found.items():
        (container,) = each["spec"]["template"]["spec"]["containers"]
        assert {"name": "SSL_CERT_FILE", "value": file} in container["env"], name
        assert "/etc/blocklist/ca" in [it["mountPath"] for it in container["volumeMounts"]], name
    assert f"--ca={file}" in found["blocklist-yarn"]["spec"]["template"]["spec"]["containers"][0]["args"]


def test_managers_get_arguments_that_they_take(objects: dict[str, str]) -> None:
    """Each Deployment of a manager and of the bridge, by the parser of its command."""
    found: dict[str, Any] = {}
    for text in objects.values():
        for each in yaml.safe_load_all(text):
            if each and each["kind"] == "Deployment" and "-" in each["metadata"]["name"]:
                container = each["spec"]["template"]["spec"]["containers"][0]
                module, *words = container["command"][container["command"].index("-m") + 1 :]
                args = [*words, *container["args"]]
                parser = bridge_parser() if module == "blocklist.flink" else build_parser("manager", args)
                found[each["metadata"]["name"]] = parser.parse_args(args)
    assert found.keys() == {f"{name}-{part}" for name in ("blocklist", "bl") for part in ("manager", "yarn", "flink")}
    assert found["blocklist-flink"].grows


def test_sigterm_reaches_a_pod_that_starts(objects: dict[str, str]) -> None:
    """Process 1 gets no signal that it does not handle; Python handles none while it starts."""
    for name, text in objects.items():
        for each in yaml.safe_load_all(text):
            if each and each["kind"] in {"Deployment", "StatefulSet"}:
                spec = each["spec"]["template"]["spec"]
                assert spec.get("shareProcessNamespace") or spec["containers"][0]["command"][0] == "tini", name
    restore = yaml.safe_load((FOR_KUBECTL / "restore.yaml").read_text())
    assert restore["spec"]["containers"][0]["command"] == ["tini", "--", "sleep", "infinity"]


def test_the_pods_of_the_chart_are_never_evicted(objects: dict[str, str], rendering: Helm) -> None:
    """They tolerate the taint, so they would come back to the node, again and again."""
    for text, expected in (
        (objects["the manager with all"], "--evict=app=a,app.kubernetes.io/name!=blocklist"),
        (
            rendering.render(MANAGER, "kubernetesManager.evict.enabled=true"),
            "--evict=app.kubernetes.io/name!=blocklist",
        ),
    ):
        manager = find(text, "Deployment")
        assert manager is not None
        pod = manager["spec"]["template"]
        assert expected in pod["spec"]["containers"][0]["args"]
        assert pod["metadata"]["labels"]["app.kubernetes.io/name"] == "blocklist"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("replica=2", "replica"),
        ("replicas=0", "replicas"),
        ("replicas=two", "replicas"),
        ("replicas=2", "SQLite allows one"),
        ("image.repository=", "repository"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("volume.size=10GB", "size"),
        ("database.secretName=My Secret", "secretName"),
        ("settings.MAX_BLOKED=2", "MAX_BLOKED"),
        ("settings.BLOCKLIST_MAX_BLOCKED=2", "BLOCKLIST_MAX_BLOCKED"),
        ("settings.MAX_BLOCKED.a=2", "MAX_BLOCKED"),
        ("settings.HOST=0.0.0.0", "HOST"),
        ("serviceAccountTokens.roles.spark=listener", "roles"),
        ("serviceAccountTokens.roles.spark/x=root", "roles"),
        ("kubernetesManager.onDrift=repair", "onDrift"),
        ("kubernetesManager.taint=a b", "taint"),
        ("kubernetesManager.evict=true", "evict"),
        ("service.port=http", "port"),
        ("database.file=vault/url", "file"),
        ("service.ipFamilyPolicy=Both", "ipFamilyPolicy"),
        ("ingress.enabled=yes", "enabled"),
        ("ingress.enabled=true", "ingress.host"),
        ("ingress.path=tools", "path"),
        ("serviceMonitor.enabled=true", "serviceMonitor.tokenSecretName"),
        ("serviceMonitor.interval=30", "interval"),
        ("extraEnv[0].value=x", "extraEnv"),
        ("affinity=x", "affinity"),
        ("podLabels.a.b=x", "podLabels"),
        ("caBundle.secretName=x", "secretName"),
        ("yarnManager.enabled=true", "yarnManager.resourceManagers"),
        ("yarnManager.resourceManagers[0]=rm1:8088", "resourceManagers"),
        ("flinkBridge.enabled=true", "flinkBridge.image"),
        ("flinkBridge.lib=lib", "lib"),
    ],
)
def test_a_mistyped_value_is_refused_and_named(rendering: Helm, value: str, words: str) -> None:
    with pytest.raises(HelmError, match=words):
        rendering.render(value)


def test_values_that_would_lock_everybody_out_are_refused(rendering: Helm) -> None:
    with pytest.raises(HelmError, match="nobody would have access"):
        rendering.render(*POSTGRESQL, "serviceAccountTokens.enabled=false")
    for values in ((MANAGER,), YARN, FLINK):
        called = values[0].partition(".")[0]
        with pytest.raises(HelmError, match=rf"{called}\.tokenSecretName"):
            rendering.render(*values, "serviceAccountTokens.enabled=false")
    for values in (("nodesFile.csv=id", "nodesFile.configMapName=a"), ("nodesFile.csv=id", "settings.NODES_FILE=/a")):
        with pytest.raises(HelmError, match=r"nodesFile"):
            rendering.render(*values)


def test_a_secret_without_the_key_is_refused_before_pods_wait_for_it(cluster: Cluster, helm: Helm) -> None:
    """`kubectl create secret tls` makes one without an authority. A Secret that comes later is not asked for."""
    namespace = restricted_namespace(cluster, "chart-keys")
    make = ["--namespace", namespace, "create", "secret", "generic"]
    cluster.kubectl(*make, "mine", "--from-literal=tls.crt=a", "--from-literal=tls.key=b")
    cluster.kubectl(*make, "empty")
    place = [str(CHART), "--namespace", namespace, "--dry-run=server"]
    for values, words in (
        ((MANAGER, "tls.secretName=mine"), r"tls.caKey: the Secret mine has no key ca.crt; it has tls.crt, tls.key"),
        (("database.secretName=mine",), r"database.key: the Secret mine has no key url"),
        (("adminToken.secretName=empty",), r"adminToken.key: the Secret empty has no key token; it has no keys"),
        ((*YARN, "yarnManager.tokenSecretName=mine"), r"yarnManager.tokenKey: .* has no key token"),
        ((*FLINK, "flinkBridge.tokenSecretName=mine"), r"flinkBridge.tokenKey: .* has no key token"),
        ((MANAGER, "tls.secretName=mine", "tls.caKey=tls.crt"), ""),
        ((MANAGER, "tls.secretName=mine", "tls.caKey="), ""),
        ((MANAGER, "tls.secretName=later"), ""),
    ):
        sets = [word for value in values for word in ("--set", value)]
        if words:
            with pytest.raises(HelmError, match=words):
                helm.run("install", "blocklist", *place, *sets)
        else:
            helm.run("install", "blocklist", *place, *sets)


def test_helm_finds_no_fault(rendering: Helm) -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in rendering.run("lint", "--strict", str(CHART))


def test_the_page_has_values_of_the_chart(rendering: Helm, tmp_path: Path) -> None:
    """Each `--set` in docs/kubernetes-service.md, and each block with values."""
    of_helm = [words for words in page.commands("helm") if "--set" in words]
    for words in of_helm:
        more = ("serviceMonitor.tokenSecretName=p",) if "serviceMonitor.enabled=true" in words else ()
        rendering.render(*(words[at + 1] for at, word in enumerate(words) if word == "--set"), *more)
    values = [text for text in page.blocks("yaml") if not text.startswith("spec:")]
    for text in values:
        (tmp_path / "values.yaml").write_text(text)
        rendering.run("template", "blocklist", str(CHART), "--values", str(tmp_path / "values.yaml"))
    assert len(of_helm) >= 3
    assert values


def test_a_pod_with_a_projected_token_is_admitted(cluster: Cluster) -> None:
    """The block of the page, in a pod."""
    (text,) = [text for text in page.blocks("yaml") if text.startswith("spec:")]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "driver"}, **yaml.safe_load(text)}
    pod["spec"]["containers"][0]["image"] = "spark"
    cluster.kubectl("create", "namespace", "chart-driver")
    cluster.kubectl("-n", "chart-driver", "create", "serviceaccount", "driver")
    options = ["--dry-run=server", "--validate=strict", "-n", "chart-driver", "-f", "-"]
    cluster.kubectl("apply", "--server-side", *options, stdin=json.dumps(pod))


def test_the_alert_rules_are_those_of_the_documentation(objects: dict[str, str]) -> None:
    rule = find(objects["monitoring"], "PrometheusRule")
    assert rule is not None
    assert rule["spec"] == yaml.safe_load((ROOT / "docs" / "monitoring" / "alerts.yml").read_text())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("REPEAT_WINDOW=0", "0"),
        ("LONGEST_BLOCK_ADMIN=0", "0"),
        ("MAX_BLOCKED_SHARE=1", "1"),
        ("TELEMETRY=false", "off"),
        ("MAX_REPORT_BYTES_PER_TOKEN=67108865", "67108865"),
    ],
)
def test_a_setting_that_yaml_reads_as_a_number_or_a_boolean_is_passed_as_it_is_meant(
    rendering: Helm, value: str, text: str
) -> None:
    assert environment(rendering.render(f"settings.{value}"))[f"BLOCKLIST_{value.partition('=')[0]}"] == text


def _rules(path_or_text: str) -> list[tuple[str, Json]]:
    """What each Role and ClusterRole allows, by kind."""
    roles = [it for it in yaml.safe_load_all(path_or_text) if it and it["kind"] in {"Role", "ClusterRole"}]
    return sorted(((it["kind"], rule) for it in roles for rule in it["rules"]), key=str)


def test_the_manager_has_the_rights_of_its_own_file(rendering: Helm) -> None:
    """The files with which its own tests run. Without eviction it may only list pods."""
    assert _rules(rendering.render(MANAGER, "kubernetesManager.evict.enabled=true")) == _rules(RULES)
    fewer = _rules((ROOT / "deploy" / "kubernetes" / "manager-rbac.yaml").read_text())
    assert _rules(rendering.render(MANAGER)) == fewer
    on_pods = [rule for _, rule in fewer if any(resource.startswith("pods") for resource in rule["resources"])]
    assert on_pods == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]


def test_texts_that_look_like_numbers_remain_texts(rendering: Helm) -> None:
    """Keys of Secrets and the audience may be called `1` or `true`."""
    texts = [f"{name}=1" for name in ("adminToken.key", "kubernetesManager.tokenKey", "tls.caKey")]
    names = ("adminToken.secretName=a", "kubernetesManager.tokenSecretName=b", "tls.secretName=c", MANAGER)
    found = rendering.render(*names, strings=texts)
    items = [
        volume["secret"]["items"][0]["key"]
        for kind in ("StatefulSet", "Deployment")
        for volume in pod_spec(found, kind)["volumes"]
        if "items" in volume.get("secret", {})
    ]
    assert items == ["1", "1", "1"]
    found = rendering.render(MANAGER, strings=["serviceAccountTokens.audience=1"])
    (projected,) = [volume["projected"] for volume in pod_spec(found, "Deployment")["volumes"] if "projected" in volume]
    assert projected["sources"][0]["serviceAccountToken"]["audience"] == "1"
    found = rendering.render(*POSTGRESQL, strings=["database.key=1"])
    environment = pod_spec(found, "Deployment")["containers"][0]["env"]
    assert {"name": "db", "key": "1"} in [it.get("valueFrom", {}).get("secretKeyRef") for it in environment]


def test_pods_have_a_token_of_the_api_server_only_if_they_need_it(rendering: Helm) -> None:
    """Each account says no, so that a pod which does not say otherwise has none."""
    for text in (rendering.render(MANAGER), RULES, (ROOT / "deploy" / "kubernetes" / "service.yaml").read_text()):
        accounts = [each for each in yaml.safe_load_all(text) if each and each["kind"] == "ServiceAccount"]
        assert accounts
        assert [each["automountServiceAccountToken"] for each in accounts] == [False] * len(accounts)
    without = rendering.render("serviceAccountTokens.enabled=false", "adminToken.secretName=a")
    assert pod_spec(without, "StatefulSet")["automountServiceAccountToken"] is False


def pod_spec(objects: str, kind: str) -> Json:
    found = find(objects, kind)
    assert found is not None
    spec: Json = found["spec"]["template"]["spec"]
    return spec


OF_HELM = ("helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version")
FOR_KUBECTL = ROOT / "deploy" / "kubernetes"


def _comparable(objects: str) -> dict[str, Json]:
    """The objects by kind and name, without rights, which are compared above, and without what only Helm adds."""
    found: dict[str, Json] = {}
    for each in yaml.safe_load_all(objects):
        kind, meta = each["kind"], each["metadata"]
        if kind == "Namespace" or "Role" in kind or (kind, meta["name"]) == ("ServiceAccount", "blocklist-manager"):
            continue
        meta.pop("annotations", None)
        assert meta.pop("namespace", "blocklist") == "blocklist"
        pods = each.get("spec", {}).get("template", {}).get("metadata", {})
        for labels in (meta["labels"], pods.get("labels", {})):
            for label in OF_HELM:
                labels.pop(label, None)
        found[f"{kind} {meta['name']}"] = each
    return found


@pytest.mark.parametrize(("database", "values"), [("sqlite", ()), ("postgresql", POSTGRESQL_FILES)])
def test_the_files_for_kubectl_are_what_the_chart_renders(
    cluster: Cluster, rendering: Helm, tmp_path: Path, database: str, values: tuple[str, ...]
) -> None:
    shutil.copytree(FOR_KUBECTL, tmp_path / "kubernetes")
    chosen = tmp_path / "kubernetes" / "kustomization.yaml"
    # As its comment says.
    chosen.write_text(chosen.read_text().replace("- sqlite.yaml", f"- {database}.yaml"))
    files = cluster.kubectl("kustomize", str(chosen.parent))
    assert _comparable(files) == _comparable(rendering.render(MANAGER, *values))
