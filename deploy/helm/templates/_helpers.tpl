{{- define "blocklist.name" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "blocklist.claim" -}}
{{- .Values.volume.existingClaim | default (printf "%s-data" (include "blocklist.name" .)) }}
{{- end }}

{{/* Called with (list $ COMPONENT). */}}
{{- define "blocklist.selector" -}}
app.kubernetes.io/name: blocklist
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "blocklist.labels" -}}
{{- include "blocklist.selector" . }}
{{- with index . 0 }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}
{{- end }}

{{- define "blocklist.image" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "blocklist.url" -}}
{{ empty .Values.tls.secretName | ternary "http" "https" }}://{{ include "blocklist.name" . }}.{{ .Release.Namespace }}.svc:{{ .Values.service.port }}
{{- end }}

{{/*
Fail if a Secret in the cluster has not the key: its pods would wait for that, and Helm would not say why. `helm template`
knows no Secrets. Called with (list $ VALUE SECRET KEY); nothing is asked without a name or a key.
*/}}
{{- define "blocklist.check-key" -}}
{{- with and (index . 2) (index . 3) (lookup "v1" "Secret" (index . 0).Release.Namespace (index . 2)) }}
{{- if not (hasKey (.data | default dict) (index $ 3)) }}
{{- $there := .data | default dict | keys | sortAlpha | join ", " | default "no keys" }}
{{- fail (printf "%s: the Secret %s has no key %s; it has %s. Name one of these, or add the key." (index $ 1) .metadata.name (index $ 3) $there) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The labels of a pod. Called with (list $ COMPONENT). */}}
{{- define "blocklist.pod-labels" -}}
{{- toYaml (merge (include "blocklist.labels" . | fromYaml) (index . 0).Values.podLabels) }}
{{- end }}

{{/* What the Pod Security Standard `restricted` asks for, and a file system that cannot be written to. */}}
{{- define "blocklist.container-security" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* The fields that all pods share. Kubernetes' variables for a Service called blocklist would be taken for settings. */}}
{{- define "blocklist.pod" -}}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 8224
  runAsGroup: 8224
  fsGroup: 8224
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
tolerations:
  - key: {{ .Values.kubernetesManager.taint | quote }}
    operator: Exists
    effect: NoSchedule
  {{- with .Values.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* NAMESPACE/NAME=ROLE,… */}}
{{- define "blocklist.roles" -}}
{{- $own := dict (printf "%s/%s-admin" .Release.Namespace (include "blocklist.name" .)) "admin" }}
{{- $managers := dict "manager" .Values.kubernetesManager "yarn" .Values.yarnManager "flink" .Values.flinkBridge }}
{{- range $component, $values := $managers }}
{{- if and $values.enabled (not $values.tokenSecretName) }}
{{- $role := $values.mirrorCordons | default false | ternary "operator" "manager" }}
{{- $_ := set $own (printf "%s/%s-%s" $.Release.Namespace (include "blocklist.name" $) $component) $role }}
{{- end }}
{{- end }}
{{- $rules := list }}
{{- range $who, $role := merge (deepCopy .Values.serviceAccountTokens.roles) $own }}
{{- $rules = append $rules (printf "%s=%s" $who $role) }}
{{- end }}
{{- join "," $rules }}
{{- end }}

{{/* Empty with SQLite. */}}
{{- define "blocklist.postgresql" -}}
{{- or .Values.database.secretName .Values.database.file }}
{{- end }}

{{/* Empty at the root of the host. */}}
{{- define "blocklist.root-path" -}}
{{- if .Values.ingress.enabled }}
{{- trimSuffix "/" .Values.ingress.path }}
{{- end }}
{{- end }}

{{/* The environment and the mounts of the service and of its migration. */}}
{{- define "blocklist.environment" -}}
env:
  {{- with .Values.database }}
  {{- if or .file (and .secretName .asFile) }}
  # The image has one of its own.
  - {name: BLOCKLIST_DATABASE_URL, value: ""}
  - {name: BLOCKLIST_DATABASE_URL_FILE, value: {{ .file | default "/etc/blocklist/database/url" | quote }}}
  {{- else if .secretName }}
  - name: BLOCKLIST_DATABASE_URL
    valueFrom:
      secretKeyRef: {name: {{ .secretName | quote }}, key: {{ .key | quote }}}
  {{- end }}
  {{- end }}
  {{- if .Values.adminToken.secretName }}
  - {name: BLOCKLIST_ADMIN_TOKEN_FILE, value: /etc/blocklist/admin/token}
  - {name: BLOCKLIST_TOKEN_FILE, value: /etc/blocklist/admin/token}
  {{- else if include "blocklist.postgresql" . }}
  - {name: BLOCKLIST_ADMIN_TOKEN_FILE, value: ""}
  {{- end }}
  {{- if .Values.serviceAccountTokens.enabled }}
  - name: BLOCKLIST_SERVICE_ACCOUNT_AUDIENCE
    value: {{ .Values.serviceAccountTokens.audience | quote }}
  - name: BLOCKLIST_SERVICE_ACCOUNT_ROLES
    value: {{ include "blocklist.roles" . | quote }}
  {{- end }}
  {{- if .Values.tls.secretName }}
  - {name: BLOCKLIST_TLS_CERT, value: /etc/blocklist/tls/tls.crt}
  - {name: BLOCKLIST_TLS_KEY, value: /etc/blocklist/tls/tls.key}
  {{- end }}
  {{- if .Values.caBundle.configMapName }}
  # Of OpenID Connect and pushes, of notices, and of PostgreSQL.
  - {name: SSL_CERT_FILE, value: /etc/blocklist/ca/ca.crt}
  - {name: REQUESTS_CA_BUNDLE, value: /etc/blocklist/ca/ca.crt}
  - {name: PGSSLROOTCERT, value: /etc/blocklist/ca/ca.crt}
  {{- end }}
  {{- if or .Values.nodesFile.csv .Values.nodesFile.configMapName }}
  - {name: BLOCKLIST_NODES_FILE, value: /etc/blocklist/nodes/nodes.csv}
  {{- end }}
  {{- with include "blocklist.root-path" . }}
  - {name: BLOCKLIST_ROOT_PATH, value: {{ . | quote }}}
  {{- end }}
  {{- range $name, $value := .Values.settings }}
  {{- /* YAML reads off as false. */}}
  {{- $text := and (eq $name "TELEMETRY") (kindIs "bool" $value) | ternary "off" (toJson $value) }}
  - name: BLOCKLIST_{{ $name }}
    value: {{ kindIs "string" $value | ternary $value $text | quote }}
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  # The last entry, so that the list is never empty.
  - {name: BLOCKLIST_HOST, value: {{ .Values.service.listen | quote }}}
{{- with .Values.settingsSecretName }}
envFrom:
  - secretRef: {name: {{ . | quote }}}
{{- end }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  {{- if not (include "blocklist.postgresql" .) }}
  - {name: data, mountPath: /data}
  {{- end }}
  {{- if and .Values.database.secretName .Values.database.asFile }}
  - {name: database, mountPath: /etc/blocklist/database, readOnly: true}
  {{- end }}
  {{- if .Values.adminToken.secretName }}
  - {name: admin, mountPath: /etc/blocklist/admin, readOnly: true}
  {{- end }}
  {{- if .Values.tls.secretName }}
  - {name: tls, mountPath: /etc/blocklist/tls, readOnly: true}
  {{- end }}
  {{- if .Values.caBundle.configMapName }}
  - {name: ca, mountPath: /etc/blocklist/ca, readOnly: true}
  {{- end }}
  {{- if or .Values.nodesFile.csv .Values.nodesFile.configMapName }}
  - {name: nodes, mountPath: /etc/blocklist/nodes, readOnly: true}
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "blocklist.ca-volume" -}}
{name: ca, configMap: {name: {{ .Values.caBundle.configMapName | quote }}, items: [{key: {{ .Values.caBundle.key | quote }}, path: ca.crt}]}}
{{- end }}

{{/*
The ServiceAccount and the Deployment of what makes a cluster obey the list. Called with a dict: root, component,
called (the name of its values), values, command, args; and for some more of the pod: pod, env, mounts, volumes.
*/}}
{{- define "blocklist.manager" -}}
{{- $root := .root }}
{{- $values := .values }}
{{- $name := printf "%s-%s" (include "blocklist.name" $root) .component }}
{{- if and (not $root.Values.serviceAccountTokens.enabled) (not $values.tokenSecretName) }}
{{- fail (printf "%s.tokenSecretName: name a Secret with a token, or leave serviceAccountTokens.enabled" .called) }}
{{- end }}
{{- $tls := and $root.Values.tls.secretName $root.Values.tls.caKey }}
{{- include "blocklist.check-key" (list $root "tls.caKey" $root.Values.tls.secretName $root.Values.tls.caKey) }}
{{- include "blocklist.check-key" (list $root (printf "%s.tokenKey" .called) $values.tokenSecretName $values.tokenKey) }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "blocklist.labels" (list $root .component) | nindent 4 }}
  {{- with $values.serviceAccountAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "blocklist.labels" (list $root .component) | nindent 4 }}
spec:
  replicas: {{ $values.replicas | default 1 }}
  {{- if not $values.replicas }}
  # A second one with the same id would take over from the first, which then ends.
  strategy: {type: Recreate}
  {{- end }}
  selector:
    matchLabels:
      {{- include "blocklist.selector" (list $root .component) | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "blocklist.pod-labels" (list $root .component) | nindent 8 }}
      {{- with $root.Values.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      {{- include "blocklist.pod" $root | nindent 6 }}
      serviceAccountName: {{ $name }}
      {{- with .pod }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
      {{- with $values.initContainers }}
      initContainers:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ .component }}
          {{- if $values.image }}
          image: {{ $values.image | quote }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          {{- else }}
          {{- include "blocklist.image" $root | nindent 10 }}
          {{- end }}
          command: {{ toJson .command }}
          args:
            {{- toYaml (concat .args ($values.args | default list)) | nindent 12 }}
          env:
            - name: BLOCKLIST_URL
              value: {{ include "blocklist.url" $root | quote }}
            - {name: BLOCKLIST_TOKEN_FILE, value: /var/run/secrets/blocklist/token}
            {{- if $tls }}
            - {name: SSL_CERT_FILE, value: /etc/blocklist/tls/ca.crt}
            {{- else if $root.Values.caBundle.configMapName }}
            - {name: SSL_CERT_FILE, value: /etc/blocklist/ca/ca.crt}
            {{- end }}
            {{- with concat (.env | default list) ($values.extraEnv | default list) }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          {{- include "blocklist.container-security" $root | nindent 10 }}
          resources:
            {{- toYaml $values.resources | nindent 12 }}
          volumeMounts:
            - {name: tmp, mountPath: /tmp}
            - {name: token, mountPath: /var/run/secrets/blocklist, readOnly: true}
            {{- if $tls }}
            - {name: tls, mountPath: /etc/blocklist/tls, readOnly: true}
            {{- end }}
            {{- if $root.Values.caBundle.configMapName }}
            - {name: ca, mountPath: /etc/blocklist/ca, readOnly: true}
            {{- end }}
            {{- with concat (.mounts | default list) ($values.extraVolumeMounts | default list) }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        - {name: tmp, emptyDir: {}}
        - name: token
          {{- if $values.tokenSecretName }}
          secret:
            secretName: {{ $values.tokenSecretName | quote }}
            defaultMode: 0440
            items: [{key: {{ $values.tokenKey | quote }}, path: token}]
          {{- else }}
          projected:
            sources:
              - serviceAccountToken:
                  audience: {{ $root.Values.serviceAccountTokens.audience | quote }}
                  path: token
                  expirationSeconds: 3600
          {{- end }}
        {{- if $tls }}
        - name: tls
          secret:
            secretName: {{ $root.Values.tls.secretName | quote }}
            items: [{key: {{ $root.Values.tls.caKey | quote }}, path: ca.crt}]
        {{- end }}
        {{- if $root.Values.caBundle.configMapName }}
        - {{ include "blocklist.ca-volume" $root }}
        {{- end }}
        {{- with concat (.volumes | default list) ($values.extraVolumes | default list) }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end }}
