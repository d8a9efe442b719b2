{{/* What one agent a node is called, in every release: a second one beside it would not start. */}}
{{- define "numawarden.labels" -}}
app.kubernetes.io/name: numawarden
{{- end }}

{{/* A role of the service account. Given: the release, what the role is for, and its rule. */}}
{{- define "numawarden.role" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: numawarden-{{ .purpose }}
  labels:
    {{- include "numawarden.labels" . | nindent 4 }}
rules:
  - {{ .rule }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: numawarden-{{ .purpose }}
  labels:
    {{- include "numawarden.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: numawarden-{{ .purpose }}
subjects:
  - kind: ServiceAccount
    name: numawarden
    namespace: {{ .release.Namespace }}
---
{{- end }}
