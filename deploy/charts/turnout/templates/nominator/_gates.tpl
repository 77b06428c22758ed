{{/* What puts our gate on pods: "policy", "webhook", or "" for nothing. */}}
{{- define "turnout.gatesBy" -}}
{{- if and .Values.nominator.enabled .Values.nominator.gatePods -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- $served := or (semverCompare ">=1.36.0-0" $version) (ne (include "turnout.policyVersion" .) "") -}}
{{- if not .Values.nominator.gates -}}
{{- fail "nominator.gatePods needs nominator.gates=true: nobody would lift the gates" -}}
{{- end -}}
{{- if and (eq .Values.nominator.gatePodsBy "policy") (semverCompare "<1.34.0-0" $version) -}}
{{- fail "nominator.gatePodsBy=policy needs Kubernetes 1.34 or newer, for MutatingAdmissionPolicy: use webhook" -}}
{{- end -}}
{{- if eq .Values.nominator.gatePodsBy "auto" -}}{{ ternary "policy" "webhook" $served }}
{{- else -}}{{ .Values.nominator.gatePodsBy }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* The version in which the API server says that it serves MutatingAdmissionPolicy; "" where it says of none. */}}
{{- define "turnout.policyVersion" -}}
{{- $group := "admissionregistration.k8s.io" -}}
{{- if .Capabilities.APIVersions.Has (printf "%s/v1/MutatingAdmissionPolicy" $group) -}}v1
{{- else if .Capabilities.APIVersions.Has (printf "%s/v1beta1/MutatingAdmissionPolicy" $group) -}}v1beta1
{{- end -}}
{{- end -}}

{{/* The namespaces whose pods get the gate. */}}
{{- define "turnout.gatedNamespaces" -}}
matchLabels: {turnout.dev/gates: "true"}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values: [kube-system, kube-public, kube-node-lease, {{ .Release.Namespace | quote }}]
{{- end -}}

{{/* The pods that get the gate, in CEL. */}}
{{- define "turnout.gatedPods" -}}
{{- $some := .Values.nominator.gateResources | toJson | replace "\"" "'" -}}
- name: not-placed-already
  expression: "!has(object.spec.nodeName) || object.spec.nodeName == ''"
- name: for-a-scheduler-whose-pods-are-nominated
  expression: "object.spec.schedulerName in {{ toJson .Values.nominator.schedulerNames | replace "\"" "'" }}"
- name: asks-for-an-accelerator  # an amount of 0 asks for none
  expression: >-
    object.spec.containers.exists(each, has(each.resources)
    && (has(each.resources.limits) && {{ $some }}.exists(name, name in each.resources.limits
    && string(each.resources.limits[name]) != '0')
    || has(each.resources.requests) && {{ $some }}.exists(name, name in each.resources.requests
    && string(each.resources.requests[name]) != '0')))
- name: of-a-gang  # as turnout.jobs.gang reads it
  expression: >-
    has(object.metadata.annotations) && ['scheduling.k8s.io/group-name', 'scheduling.volcano.sh/group-name',
    'gang.scheduling.koordinator.sh/name', 'pod-group-name'].exists(name, name in object.metadata.annotations && object.metadata.annotations[name] != '')
    || has(object.metadata.labels) && ['pod-group.scheduling.sigs.k8s.io', 'scheduling.x-k8s.io/pod-group']
    .exists(name, name in object.metadata.labels && object.metadata.labels[name] != '')
    || has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(each, has(each.controller) && each.controller)
    && (has(object.metadata.labels) && ['batch.kubernetes.io/job-completion-index', 'apps.kubernetes.io/pod-index',
    'training.kubeflow.org/replica-index'].exists(name, name in object.metadata.labels)
    || has(object.metadata.annotations) && 'batch.kubernetes.io/job-completion-index' in object.metadata.annotations)
{{- end -}}
