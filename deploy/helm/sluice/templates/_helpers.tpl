{{- define "sluice.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "sluice.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "sluice.fullname" .) }}{{ else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{- define "sluice.modelsConfigMap" -}}
{{ .Values.existingModelsConfigMap | default (printf "%s-models" (include "sluice.fullname" .)) }}
{{- end }}

{{- define "sluice.blobClaim" -}}
{{- with .Values.blobs.volume }}{{ if .existingClaim }}{{ .existingClaim }}{{ else if .create }}{{ include "sluice.fullname" $ }}-blobs{{ end }}{{ end }}
{{- end }}

{{/* Environment of a role, as a map of names to values. The chart sets ports, paths and connections; settings of the user come last. */}}
{{- define "sluice.settings" -}}
{{- $root := .root }}{{ $v := $root.Values }}
{{- $env := dict "HOST" "0.0.0.0" "PORT" "8080" "METRICS_PORT" "8081" "DATA_DIR" "/data" "MODELS_FILE" "/etc/sluice/models/models.yaml" }}
{{- $_ := set $env "KAFKA_BROKERS" (required "kafka.brokers is empty; set it to host:port of the Kafka brokers" $v.kafka.brokers) }}
{{- $_ := set $env "DRAIN_MS" ($v.drain.drainMs | int | toString) }}
{{- if eq .role "ingress" }}{{ $_ := set $env "DRAIN_NOTICE_MS" ($v.drain.noticeMs | int | toString) }}{{ end }}
{{- if $v.kafka.tls.enabled }}{{ $_ := set $env "KAFKA_TLS" "true" }}{{ end }}
{{- if $v.kafka.tls.ca.secret }}{{ $_ := set $env "KAFKA_SSL_CA" (printf "/etc/sluice/kafka-ca/%s" $v.kafka.tls.ca.key) }}{{ end }}
{{- if $v.kafka.tls.client.secret }}
{{- $_ := set $env "KAFKA_SSL_CERT" (printf "/etc/sluice/kafka-client/%s" $v.kafka.tls.client.certKey) }}
{{- $_ := set $env "KAFKA_SSL_KEY" (printf "/etc/sluice/kafka-client/%s" $v.kafka.tls.client.keyKey) }}
{{- end }}
{{- with $v.kafka.saslMechanism }}{{ $_ := set $env "KAFKA_SASL_MECHANISM" . }}{{ end }}
{{- with $v.blobs.s3 }}
{{- if .url }}{{ $_ := set $env "BLOB_URL" .url }}{{ end }}
{{- if .endpoint }}{{ $_ := set $env "BLOB_S3_ENDPOINT" .endpoint }}{{ end }}
{{- if .region }}{{ $_ := set $env "BLOB_S3_REGION" .region }}{{ end }}
{{- if .sse }}{{ $_ := set $env "BLOB_S3_SSE" .sse }}{{ end }}
{{- if .kmsKey }}{{ $_ := set $env "BLOB_S3_KMS_KEY" .kmsKey }}{{ end }}
{{- end }}
{{- if include "sluice.blobClaim" $root }}{{ $_ := set $env "BLOB_DIR" "/blobs" }}{{ end }}
{{- range $name, $value := merge (dict) (.spec.settings | default dict) $v.settings }}{{ $_ := set $env $name ($value | toString) }}{{ end }}
{{- toYaml $env }}
{{- end }}

{{/* Maximum time from SIGTERM to the end of a process, in seconds. */}}
{{- define "sluice.gracePeriod" -}}
{{- $ms := .root.Values.drain.drainMs | int }}
{{- if eq .role "ingress" }}{{ $ms = add $ms (.root.Values.drain.noticeMs | int) }}{{ end }}
{{- add (ceil (divf $ms 1000)) 10 }}
{{- end }}
