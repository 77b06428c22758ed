{{/* Begins the name of everything that is installed. The release's name is enough: a cluster has few releases. */}}
{{- define "turnout.fullname" -}}
{{- $name := .Release.Name -}}
{{- with .Values.nameOverride }}{{ if not (contains . $name) }}{{ $name = printf "%s-%s" $name . }}{{ end }}{{ end -}}
{{- .Values.fullnameOverride | default $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Names what belongs to one program: its account, Lease and roles. Call it with (list $ "extender"). */}}
{{- define "turnout.name" -}}
{{- printf "%s-%s" (include "turnout.fullname" (index . 0)) (index . 1) -}}
{{- end -}}

{{/* Names the account of a program. Call it with (list $ "extender"). */}}
{{- define "turnout.accountName" -}}
{{- (index (index . 0).Values (index . 1)).serviceAccount.name | default (include "turnout.name" .) -}}
{{- end -}}

{{/* The Secret of kube-scheduler's client certificate. */}}
{{- define "turnout.clientSecret" -}}
{{- .Values.extender.tls.schedulerSecretName | default (printf "%s-tls" (include "turnout.name" (list . "scheduler"))) -}}
{{- end -}}

{{/* The labels by which a program's pods are found. They never change: a Deployment's selector cannot. */}}
{{- define "turnout.selector" -}}
app.kubernetes.io/name: turnout-{{ index . 1 }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
{{- end -}}

{{- define "turnout.labels" -}}
{{ include "turnout.selector" . }}
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/part-of: turnout
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version | replace "+" "_" }}
{{- end -}}

{{/*
An image by its value: a map of repository (or name), tag and digest, or a string that may have a tag. What it leaves out
is the chart's. Call it with (list $ .Values.extender.image "turnout"): the last is the name where no value has any.
*/}}
{{- define "turnout.image" -}}
{{- $root := index . 0 -}}
{{- $ours := $root.Values.image -}}
{{- $given := index . 1 | default dict -}}
{{- if kindIs "string" $given -}}{{- $given = dict "repository" $given -}}{{- end -}}
{{- $own := $given.repository | default $given.name -}}
{{- $name := $own | default $ours.repository | default (index . 2) -}}
{{- with $root.Values.registry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) $name }}{{ end -}}
{{- $digest := $given.digest -}}
{{- if not (or $digest $given.tag $own) }}{{ $digest = $ours.digest }}{{ end -}}
{{- if $digest -}}
{{- printf "%s@%s" $name $digest -}}
{{- else if or $given.tag (not (regexMatch "(:[^/]+|@sha256:[0-9a-f]+)$" $name)) -}}
{{- printf "%s:%s" $name ($given.tag | default $ours.tag | default $root.Chart.AppVersion) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{/*
CEL, true of a request by one of our accounts. Call it with (list $ "nominator").
`guards: anyNamespace` is for manifests that kustomize may move or rename: it leaves the text of a policy as it is.
*/}}
{{- define "turnout.byAccount" -}}
{{- $name := include "turnout.accountName" . -}}
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

{{/* True where a program is installed. Call it with (list $ "extender"). The controller needs a kind, too. */}}
{{- define "turnout.isOn" -}}
{{- $values := index (index . 0).Values (index . 1) | default dict -}}
{{- if and $values.enabled (or (ne (index . 1) "controller") $values.kinds) }}true{{ end -}}
{{- end -}}

{{/* True where the API server knows ValidatingAdmissionPolicies, which guard the accounts that may write. */}}
{{- define "turnout.guarded" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}true{{ end -}}
{{- end -}}

{{/* Refuses values with which a part would be installed unguarded, or pods would wait for ever. */}}
{{- define "turnout.checked" -}}
{{- if and .Values.controller.gatePods (not (and .Values.nominator.enabled .Values.nominator.gates)) -}}
{{- fail "controller.gatePods needs nominator.enabled=true and nominator.gates=true: nobody would lift the gates" -}}
{{- end -}}
{{- if not (include "turnout.guarded" .) -}}
{{- range $part, $on := dict "nominator.enabled" .Values.nominator.enabled "autoscaler.enabled" .Values.autoscaler.enabled -}}
{{- if $on -}}
{{- fail (printf "%s needs Kubernetes 1.30 or newer: a ValidatingAdmissionPolicy bounds what its account may write. Set %s=false." $part $part) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
