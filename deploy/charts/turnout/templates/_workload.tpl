{{/*
The Deployment of one program, its PodDisruptionBudget and its NetworkPolicy: what all of them have in common.
Call it with a dict: root, component, values (its part of the values), name (of the Deployment), port (of probes and
metrics), args (a list), and where there is more: egress (YAML as text), command (a list, of a program of another name), volumes, mounts, ports,
ingress, sidecars (YAML as text).
*/}}
{{- define "turnout.workload" -}}
{{- $root := .root -}}
{{- $of := list $root .component -}}
{{- $name := .name | default (include "turnout.name" $of) -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "turnout.labels" $of | nindent 4 }}
spec:
  replicas: {{ .values.replicas }}
  strategy:
    type: RollingUpdate  # said, else a second `kubectl apply` of the same file is a change
    rollingUpdate: {maxUnavailable: 0, maxSurge: 1}
  selector:
    matchLabels: {{- include "turnout.selector" $of | nindent 6 }}
  template:
    metadata:
      labels: {{- include "turnout.labels" $of | nindent 8 }}
      {{- with .values.podLabels }}{{ toYaml . | nindent 8 }}{{ end }}
      {{- with .values.podAnnotations }}
      annotations: {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      {{- include "turnout.podSettings" (list $root .component) | nindent 6 }}
      containers:
        - name: {{ .component }}
          image: {{ include "turnout.image" (list $root .values.image (.image | default "turnout")) }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          command: {{ .command | default (printf "[turnout-%s]" .component) }}
          args:
            {{- range .args }}
            - {{ . }}
            {{- end }}
            {{- with $root.Values.docs.baseUrl }}
            - {{ printf "--docs-base-url=%s" . | quote }}
            {{- end }}
            {{- range .values.extraArgs }}
            - {{ . | quote }}
            {{- end }}
          env:
            - name: POD_NAME
              valueFrom: {fieldRef: {fieldPath: metadata.name}}
            - name: POD_NAMESPACE  # its Lease and the map are beside it, wherever it is installed
              valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
            - name: POD_IP
              valueFrom: {fieldRef: {fieldPath: status.podIP}}
            {{- with .values.extraEnv }}{{ toYaml . | nindent 12 }}{{ end }}
          ports:
            {{- with .ports }}{{ . | nindent 12 }}{{ end }}
            - {name: metrics, containerPort: {{ .port }}}
          {{- include "turnout.probes" "metrics" | nindent 10 }}
          resources: {{- toYaml .values.resources | nindent 12 }}
          securityContext: {{- include "turnout.containerSecurity" $of | nindent 12 }}
          volumeMounts:
            {{- with .mounts }}{{ . | nindent 12 }}{{ end }}
            - {name: tmp, mountPath: /tmp}
        {{- with .sidecars }}{{ . | nindent 8 }}{{ end }}
      volumes:
        {{- with .volumes }}{{ . | nindent 8 }}{{ end }}
        - name: tmp
          emptyDir: {sizeLimit: 16Mi}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "turnout.labels" $of | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "turnout.selector" $of | nindent 6 }}
{{- if $root.Values.networkPolicy.enabled }}
---
# Kubelets reach the pods of their own node in any case.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "turnout.labels" $of | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{- include "turnout.selector" $of | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
    {{- with .ingress }}{{ . | nindent 4 }}{{ end }}
    - from:
        - namespaceSelector:
            matchLabels:
              kubernetes.io/metadata.name: {{ $root.Values.networkPolicy.monitoringNamespace }}
      ports:
        - {protocol: TCP, port: metrics}
  egress:  # the API server, and names
    - ports:
        {{- range $root.Values.networkPolicy.apiServerPorts }}
        - {protocol: TCP, port: {{ . }}}
        {{- end }}
        - {protocol: UDP, port: 53}
        - {protocol: TCP, port: 53}
    {{- with .egress }}{{ . | nindent 4 }}{{ end }}
{{- end }}
{{- end -}}

{{- define "turnout.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 2
  failureThreshold: 30
readinessProbe:  # not before everything that decides has been seen
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 3
livenessProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}

{{/* What an admin may say of the pods of a program. Call it with (list $ "extender"). */}}
{{- define "turnout.podSettings" -}}
{{- $root := index . 0 -}}
{{- $values := index $root.Values (index . 1) -}}
serviceAccountName: {{ include "turnout.accountName" . }}
automountServiceAccountToken: true
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
schedulerName: default-scheduler  # asks for no GPU, so it needs no opinion of ours about itself
terminationGracePeriodSeconds: 15
{{- include "turnout.where" . }}
topologySpreadConstraints:
  {{- with $values.topologySpreadConstraints }}{{ toYaml . | nindent 2 }}{{ else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway  # one node is enough to run it
    labelSelector:
      matchLabels: {{- include "turnout.selector" . | nindent 8 }}
  {{- end }}
securityContext: {{- include "turnout.podSecurity" . | nindent 2 }}
{{- end -}}

{{/* On which nodes the pods of a program may run. */}}
{{- define "turnout.where" -}}
{{- $values := index (index . 0).Values (index . 1) -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $values $key }}
{{ $key }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The security context of a program's pods. Call it with (list $ "extender"). */}}
{{- define "turnout.podSecurity" -}}
{{- include "turnout.changed" (list (index . 0).Values.podSecurityContext (index (index . 0).Values (index . 1)).podSecurityContext) -}}
{{- end -}}

{{/* The security context of a program's containers. */}}
{{- define "turnout.containerSecurity" -}}
{{- include "turnout.changed" (list (index . 0).Values.securityContext (index (index . 0).Values (index . 1)).securityContext) -}}
{{- end -}}

{{/* The chart's map with a program's changes, of which null takes a key away. */}}
{{- define "turnout.changed" -}}
{{- $all := dict -}}
{{- range $key, $value := mergeOverwrite (deepCopy (index . 0)) (index . 1) -}}
{{- if not (kindIs "invalid" $value) }}{{ $_ := set $all $key $value }}{{ end -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* The account of a program, and its Lease where it has one. Call it with (list $ "autoscaler" true). */}}
{{- define "turnout.account" -}}
{{- $root := index . 0 -}}
{{- $account := (index $root.Values (index . 1)).serviceAccount -}}
{{- if $account.create -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "turnout.accountName" . }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "turnout.labels" . | nindent 4 }}
  {{- with $account.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false  # the Deployment asks for it itself
{{- end }}
{{- if index . 2 }}
---
# The Lease is made here, so that its holder needs no right to make any.
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata:
  name: {{ include "turnout.name" . }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "turnout.labels" . | nindent 4 }}
{{- end }}
{{- end -}}
