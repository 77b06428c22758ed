{{/* What a placement depends on, for an account. Call it with (list $ "extender"), and a third item for more rules. */}}
{{- define "turnout.placing" -}}
{{- $root := index . 0 -}}
{{- $name := include "turnout.name" . -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $name }}
  labels: {{- include "turnout.labels" . | nindent 4 }}
rules:
  - apiGroups: [""]
    resources: [nodes, pods]
    verbs: [get, list, watch]
  - apiGroups: [batch]  # how many pods an Indexed Job starts together
    resources: [jobs]
    verbs: [get, list, watch]
  - apiGroups: [apps]
    resources: [statefulsets]
    verbs: [get, list, watch]
  - apiGroups: [scheduling.volcano.sh, scheduling.sigs.k8s.io, scheduling.x-k8s.io, scheduling.run.ai, scheduling.k8s.io]
    resources: [podgroups]
    verbs: [get, list, watch]
  - apiGroups: [scheduling.k8s.io]  # alpha: most API servers do not serve them
    resources: [compositepodgroups]
    verbs: [get, list, watch]
  {{- if $root.Values.nominator.readQueues }}
  - apiGroups: [kueue.x-k8s.io]
    resources: [clusterqueues, localqueues]
    verbs: [list, watch]
  - apiGroups: [scheduling.volcano.sh]
    resources: [queues]
    verbs: [list, watch]
  - apiGroups: [scheduling.sigs.k8s.io, scheduling.x-k8s.io]
    resources: [elasticquotas]
    verbs: [list, watch]
  {{- end }}
  - apiGroups: [""]
    resources: [events]
    verbs: [create, patch]
  {{- if gt (len .) 2 }}{{ index . 2 | nindent 2 }}{{ end }}
---
{{ include "turnout.bound" . }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}-topology
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "turnout.labels" . | nindent 4 }}
rules:
  - apiGroups: [""]
    resources: [configmaps]
    resourceNames: [node-topology-config, turnout-reservations]
    verbs: [get, list, watch]
---
{{ include "turnout.boundHere" (list $root (index . 1) "-topology") }}
{{- end -}}

{{/* Binds a ClusterRole of an account's name to it everywhere. */}}
{{- define "turnout.bound" -}}
{{- $name := include "turnout.name" . -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}
  labels: {{- include "turnout.labels" . | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ $name }}}
subjects:
  - {kind: ServiceAccount, name: {{ include "turnout.accountName" . }}, namespace: {{ (index . 0).Release.Namespace }}}
{{- end -}}

{{/* Binds a Role, an account's name and an ending, to it in the release's namespace. */}}
{{- define "turnout.boundHere" -}}
{{- $name := include "turnout.name" . -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}{{ index . 2 }}
  namespace: {{ (index . 0).Release.Namespace }}
  labels: {{- include "turnout.labels" . | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ $name }}{{ index . 2 }}}
subjects:
  - {kind: ServiceAccount, name: {{ include "turnout.accountName" . }}, namespace: {{ (index . 0).Release.Namespace }}}
{{- end -}}

{{/* The right to hold a program's own Lease, and no other. kube-scheduler updates its Lease where we patch ours. */}}
{{- define "turnout.leads" -}}
{{- $name := include "turnout.name" . -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}-lease
  namespace: {{ (index . 0).Release.Namespace }}
  labels: {{- include "turnout.labels" . | nindent 4 }}
rules:
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    resourceNames: [{{ $name }}]
    verbs: [get, {{ ternary "update" "patch" (eq (index . 1) "scheduler") }}]
---
{{ include "turnout.boundHere" (list (index . 0) (index . 1) "-lease") }}
{{- end -}}

{{/* The flags of who plans about queues of strict order, as a list in JSON: both programs have to plan alike. */}}
{{- define "turnout.queueFlags" -}}
{{- $flags := list }}
{{- range .Values.nominator.strictQueues }}{{ $flags = append $flags (printf "--strict-queue=%s" .) }}{{ end }}
{{- if .Values.nominator.readQueues }}{{ $flags = append $flags "--read-queues" }}{{ end }}
{{- toJson $flags }}
{{- end -}}
