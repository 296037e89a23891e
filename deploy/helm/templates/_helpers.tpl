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
{{- with .Values.kubernetesManager }}
{{- if and .enabled (not .tokenSecretName) }}
{{- $role := .mirrorCordons | ternary "operator" "listener" }}
{{- $_ := set $own (printf "%s/%s-manager" $.Release.Namespace (include "blocklist.name" $)) $role }}
{{- end }}
{{- end }}
{{- $rules := list }}
{{- range $who, $role := merge (deepCopy .Values.serviceAccountTokens.roles) $own }}
{{- $rules = append $rules (printf "%s=%s" $who $role) }}
{{- end }}
{{- join "," $rules }}
{{- end }}

{{/* The environment and the mounts of the service and of its migration. */}}
{{- define "blocklist.environment" -}}
env:
  {{- with .Values.database }}
  {{- if .secretName }}
  - name: BLOCKLIST_DATABASE_URL
    valueFrom:
      secretKeyRef: {name: {{ .secretName | quote }}, key: {{ .key | quote }}}
  {{- end }}
  {{- end }}
  {{- if .Values.adminToken.secretName }}
  - {name: BLOCKLIST_ADMIN_TOKEN_FILE, value: /etc/blocklist/admin/token}
  - {name: BLOCKLIST_TOKEN_FILE, value: /etc/blocklist/admin/token}
  {{- else if .Values.database.secretName }}
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
  {{- range $name, $value := .Values.settings }}
  {{- /* YAML reads off as false. */}}
  {{- $text := and (eq $name "TELEMETRY") (kindIs "bool" $value) | ternary "off" (toJson $value) }}
  - name: BLOCKLIST_{{ $name }}
    value: {{ kindIs "string" $value | ternary $value $text | quote }}
  {{- end }}
  # The last entry, so that the list is never empty.
  - {name: BLOCKLIST_HOST, value: {{ .Values.service.listen | quote }}}
{{- with .Values.settingsSecretName }}
envFrom:
  - secretRef: {name: {{ . | quote }}}
{{- end }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  {{- if not .Values.database.secretName }}
  - {name: data, mountPath: /data}
  {{- end }}
  {{- if .Values.adminToken.secretName }}
  - {name: admin, mountPath: /etc/blocklist/admin, readOnly: true}
  {{- end }}
  {{- if .Values.tls.secretName }}
  - {name: tls, mountPath: /etc/blocklist/tls, readOnly: true}
  {{- end }}
{{- end }}
