{{/* Begins the name of everything that is installed. The release is enough: one cluster has few of them. */}}
{{- define "turnout.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Names what belongs to one program: its account, Lease and roles. Call it with (list $ "extender"). */}}
{{- define "turnout.name" -}}
{{- printf "%s-%s" (include "turnout.fullname" (index . 0)) (index . 1) -}}
{{- end -}}

{{/* The labels by which a program's pods are found. They never change: a Deployment's selector cannot. */}}
{{- define "turnout.selector" -}}
app.kubernetes.io/name: turnout-{{ index . 1 }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
{{- end -}}

{{- define "turnout.labels" -}}
{{ include "turnout.selector" . }}
app.kubernetes.io/part-of: turnout
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version | replace "+" "_" }}
{{- end -}}

{{/*
An image by its value: a string, or a map of name, tag and digest. The registry goes before every name.
Call it with (list $ .Values.extender.image), and a third item for a name of its own where the value gives none.
*/}}
{{- define "turnout.image" -}}
{{- $root := index . 0 -}}
{{- $named := dict "name" (index (append . "") 2) -}}
{{- $given := index . 1 | default (ternary $named $root.Values.image (ne $named.name "")) -}}
{{- if kindIs "string" $given -}}{{- $given = dict "name" $given -}}{{- end -}}
{{- $name := $given.name | default $named.name | default $root.Values.image.name -}}
{{- with $root.Values.registry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) $name }}{{ end -}}
{{- if $given.digest -}}
{{- printf "%s@%s" $name $given.digest -}}
{{- else if or $given.tag (not (regexMatch "(:[^/]+|@sha256:[0-9a-f]+)$" $name)) -}}
{{- printf "%s:%s" $name ($given.tag | default $root.Values.image.tag | default $root.Chart.AppVersion) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{/*
CEL, true of a request by one of our accounts. Call it with (list $ "nominator").
`guards: anyNamespace` is for manifests that kustomize may move or rename: it leaves the text of a policy as it is.
*/}}
{{- define "turnout.byAccount" -}}
{{- $name := include "turnout.name" . -}}
{{- $root := index . 0 -}}
{{- if eq $root.Values.guards "anyNamespace" -}}
request.userInfo.username.matches('^system:serviceaccount:[^:]+:([a-z0-9.-]+-)?{{ $name }}(-[a-z0-9.-]+)?$')
{{- else -}}
request.userInfo.username == 'system:serviceaccount:{{ $root.Release.Namespace }}:{{ $name }}'
{{- end -}}
{{- end -}}

{{/* CEL, true of a pod that was behind our gate before the request. */}}
{{- define "turnout.behindOurGate" -}}
has(oldObject.spec.schedulingGates) && oldObject.spec.schedulingGates.exists(each, each.name == 'turnout.dev/placement')
{{- end -}}

{{/* True where the API server knows ValidatingAdmissionPolicies, which guard the accounts that may write. */}}
{{- define "turnout.guarded" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}true{{ end -}}
{{- end -}}

{{/* Refuses values with which a part would be installed unguarded. */}}
{{- define "turnout.checked" -}}
{{- if not (include "turnout.guarded" .) -}}
{{- range $part, $on := dict "nominator.enabled" .Values.nominator.enabled "autoscaler.enabled" .Values.autoscaler.enabled -}}
{{- if $on -}}
{{- fail (printf "%s needs Kubernetes 1.30 or newer: a ValidatingAdmissionPolicy bounds what its account may write. Set %s=false." $part $part) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
