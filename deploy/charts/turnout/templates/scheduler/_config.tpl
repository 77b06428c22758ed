{{/* kube-scheduler's configuration with the extender at its side. The reasons stand in deploy/scheduler. */}}
{{- define "turnout.schedulerConfig" -}}
{{- $name := include "turnout.name" (list . "scheduler") -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {qps: 500, burst: 1000}
leaderElection:
  leaderElect: true
  resourceNamespace: {{ .Release.Namespace }}
  resourceName: {{ $name }}
percentageOfNodesToScore: 100
profiles:
  - schedulerName: {{ .Values.scheduler.schedulerName }}
extenders:
  - urlPrefix: http://127.0.0.1:9443
    filterVerb: filter
    prioritizeVerb: prioritize
    preemptVerb: preempt
    weight: 121
    httpTimeout: 1s
    nodeCacheCapable: true
    ignorable: true
    managedResources:
      {{- range list "nvidia.com/gpu" "metax-tech.com/gpu" "amd.com/gpu" "huawei.com/Ascend910" }}
      - {name: {{ . }}, ignoredByScheduler: false}
      {{- end }}
{{- end -}}

{{- define "turnout.schedulerWorkload" -}}
{{- $of := list . "scheduler" -}}
{{- $name := include "turnout.name" $of -}}
{{- $values := .Values.scheduler -}}
{{- $version := regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version -}}
{{- $image := merge (deepCopy $values.image) (dict "tag" $version) -}}
# Two replicas, of which the holder of the Lease schedules.
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  namespace: {{ .Release.Namespace }}
  labels: {{- include "turnout.labels" $of | nindent 4 }}
spec:
  replicas: {{ $values.replicas }}
  selector:
    matchLabels: {{- include "turnout.selector" $of | nindent 6 }}
  template:
    metadata:
      labels: {{- include "turnout.labels" $of | nindent 8 }}
      {{- with $values.podLabels }}{{ toYaml . | nindent 8 }}{{ end }}
      annotations:
        checksum/config: {{ include "turnout.schedulerConfig" . | sha256sum }}
        {{- with $values.podAnnotations }}{{ toYaml . | nindent 8 }}{{ end }}
    spec:
      {{- include "turnout.podSettings" $of | nindent 6 }}
      containers:
        - name: kube-scheduler
          image: {{ include "turnout.image" (list . $image "kube-scheduler") }}
          imagePullPolicy: {{ .Values.image.pullPolicy }}
          command: [kube-scheduler]
          args:
            - --config=/etc/turnout/config.yaml
            - --bind-address={{ .Values.bindAddress }}
            - --secure-port=10259
            {{- range $values.extraArgs }}
            - {{ . | quote }}
            {{- end }}
          env:
            - name: POD_IP
              valueFrom: {fieldRef: {fieldPath: status.podIP}}
            {{- with $values.extraEnv }}{{ toYaml . | nindent 12 }}{{ end }}
          ports:
            - {name: scheduler, containerPort: 10259}
          startupProbe:
            httpGet: {path: /healthz, port: scheduler, scheme: HTTPS}
            periodSeconds: 2
            failureThreshold: 30
          livenessProbe:
            httpGet: {path: /healthz, port: scheduler, scheme: HTTPS}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: /readyz, port: scheduler, scheme: HTTPS}
            periodSeconds: 3
          resources: {{- toYaml $values.resources | nindent 12 }}
          securityContext: {{- include "turnout.containerSecurity" $of | nindent 12 }}
          volumeMounts:
            - {name: config, mountPath: /etc/turnout, readOnly: true}
            - {name: tmp, mountPath: /tmp}
        - name: extender
          image: {{ include "turnout.image" (list . .Values.extender.image "turnout") }}
          imagePullPolicy: {{ .Values.image.pullPolicy }}
          command: [turnout-extender]
          args:
            - --bind=127.0.0.1:9443
            - --configmap=$(POD_NAMESPACE)/node-topology-config
            - --reservations=$(POD_NAMESPACE)/turnout-reservations
            - --metrics-bind={{ .Values.bindAddress }}:9090
            {{- with .Values.docs.baseUrl }}
            - {{ printf "--docs-base-url=%s" . | quote }}
            {{- end }}
            {{- range concat (include "turnout.queueFlags" . | fromJsonArray) .Values.extender.extraArgs }}
            - {{ . | quote }}
            {{- end }}
          env:
            - name: POD_NAME
              valueFrom: {fieldRef: {fieldPath: metadata.name}}
            - name: POD_NAMESPACE
              valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
            - name: POD_IP
              valueFrom: {fieldRef: {fieldPath: status.podIP}}
          ports:
            - {name: metrics, containerPort: 9090}
          {{- include "turnout.probes" "metrics" | nindent 10 }}
          resources: {{- toYaml .Values.extender.resources | nindent 12 }}
          securityContext: {{- include "turnout.containerSecurity" $of | nindent 12 }}
          volumeMounts:
            - {name: tmp, mountPath: /tmp}
      volumes:
        - name: config
          configMap: {name: {{ $name }}}
        - name: tmp
          emptyDir: {sizeLimit: 16Mi}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  namespace: {{ .Release.Namespace }}
  labels: {{- include "turnout.labels" $of | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "turnout.selector" $of | nindent 6 }}
{{- if .Values.networkPolicy.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ $name }}
  namespace: {{ .Release.Namespace }}
  labels: {{- include "turnout.labels" $of | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{- include "turnout.selector" $of | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
    - from:
        - namespaceSelector:
            matchLabels:
              kubernetes.io/metadata.name: {{ .Values.networkPolicy.monitoringNamespace }}
      ports:
        - {protocol: TCP, port: metrics}
  egress:
    - ports:
        {{- range .Values.networkPolicy.apiServerPorts }}
        - {protocol: TCP, port: {{ . }}}
        {{- end }}
        - {protocol: UDP, port: 53}
        - {protocol: TCP, port: 53}
{{- end }}
{{- end -}}
