{{/* A pod that takes our gate from others. Call it with (dict "root" $ "account" NAME "args" (list "--all")). */}}
{{- define "turnout.releasePod" -}}
{{- $of := list .root "nominator" -}}
metadata:
  labels: {app.kubernetes.io/part-of: turnout}
spec:
  restartPolicy: Never
  serviceAccountName: {{ .account }}
  automountServiceAccountToken: true
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with include "turnout.where" $of }}{{ trim . | nindent 2 }}{{ end }}
  securityContext: {{- include "turnout.podSecurity" $of | nindent 4 }}
  containers:
    - name: release
      image: {{ include "turnout.image" (list .root .root.Values.nominator.image "turnout") }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      command: [turnout, release]
      args: {{ concat .args (ternary (list (printf "--docs-base-url=%s" .root.Values.docs.baseUrl)) list (ne .root.Values.docs.baseUrl "")) | toJson }}
      resources:
        requests: {cpu: 100m, memory: 128Mi}
        limits: {memory: 512Mi}
      securityContext: {{- include "turnout.containerSecurity" $of | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
  volumes:
    - name: tmp
      emptyDir: {sizeLimit: 16Mi}
{{- end -}}
