{{/* A pod that takes our gate from others. Call it with (dict "root" $ "account" NAME "args" (list "--all")). */}}
{{- define "turnout.releasePod" -}}
{{- $values := .root.Values.nominator -}}
metadata:
  labels: {app.kubernetes.io/part-of: turnout}
spec:
  restartPolicy: Never
  serviceAccountName: {{ .account }}
  automountServiceAccountToken: true
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: release
      image: {{ include "turnout.image" (list .root $values.image "") }}
      imagePullPolicy: {{ .root.Values.imagePullPolicy }}
      command: [turnout, release]
      args: {{ concat .args (ternary (list (printf "--docs-base-url=%s" .root.Values.docs.baseUrl)) list (ne .root.Values.docs.baseUrl "")) | toJson }}
      resources:
        requests: {cpu: 100m, memory: 128Mi}
        limits: {memory: 512Mi}
      securityContext: {{- include "turnout.locked" .root | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
  volumes:
    - name: tmp
      emptyDir: {sizeLimit: 16Mi}
{{- end -}}
