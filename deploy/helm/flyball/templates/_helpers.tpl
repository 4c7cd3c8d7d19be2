{{/* The labels of an object of a component: (dict "root" $ "component" "operator"). */}}
{{- define "flyball.labels" -}}
{{ include "flyball.selectorLabels" . }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* What selects the pods of a component. Admission policies and the operator know agents by it: it never changes. */}}
{{- define "flyball.selectorLabels" -}}
app.kubernetes.io/name: flyball
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{/* The image of a component. An empty registry, as of a shell's variable that is not set, is none given. */}}
{{- define "flyball.image" -}}
{{ .root.Values.image.registry | default "localhost" }}/flyball-{{ .component }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}
