{{- define "izwi.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "izwi.labels" -}}
app.kubernetes.io/name: izwi
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "izwi.selector" -}}
app.kubernetes.io/name: izwi
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "izwi.balancer.selector" -}}
app.kubernetes.io/name: izwi
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: balancer
{{- end -}}

{{/* The most replicas that there may be: the balancer knows each by its name. */}}
{{- define "izwi.max" -}}
{{- if eq .Values.autoscaling.by "none" -}}{{ .Values.replicaCount }}{{- else -}}{{ .Values.autoscaling.maxReplicas }}{{- end -}}
{{- end -}}

{{/* Host names that clients and the balancer use. */}}
{{- define "izwi.hosts" -}}
{{- $name := include "izwi.name" . -}}
{{- $space := .Release.Namespace -}}
{{- $hosts := list $name (printf "%s.%s" $name $space) (printf "%s.%s.svc" $name $space) (printf "%s.%s.svc.%s" $name $space .Values.clusterDomain) -}}
{{- if .Values.ingress.enabled -}}{{- $hosts = append $hosts .Values.ingress.host -}}{{- end -}}
{{- concat $hosts .Values.allowHosts | join "," -}}
{{- end -}}

{{- define "izwi.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}
