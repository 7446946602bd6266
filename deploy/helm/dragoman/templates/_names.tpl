{{- define "dragoman.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- define "dragoman.selector" -}}
app.kubernetes.io/name: dragoman
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "dragoman.labels" -}}
{{ include "dragoman.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "dragoman.secret" -}}
{{ .Values.secret.existing | default (include "dragoman.name" .) }}
{{- end }}
