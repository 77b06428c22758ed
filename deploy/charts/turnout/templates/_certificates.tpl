{{/*
Certificates that helm makes. `helm upgrade` keeps each until a third of its life is left, and then makes another. Until
when it is valid stands in an annotation, since a template cannot read a certificate.
*/}}

{{/* Says until when a certificate that is made now is valid. Call it with a number of days. */}}
{{- define "turnout.validUntil" -}}
{{- dateInZone "2006-01-02T15:04:05Z07:00" (now | dateModify (printf "+%dh" (mul 24 .))) "UTC" -}}
{{- end -}}

{{/* The Secret of a certificate as JSON where an upgrade keeps it, else {}. Call it with (list $ NAME DAYS). */}}
{{- define "turnout.keptSecret" -}}
{{- $found := lookup "v1" "Secret" (index . 0).Release.Namespace (index . 1) | default dict -}}
{{- $until := dig "metadata" "annotations" "turnout.dev/valid-until" "" $found -}}
{{- $left := sub (toDate "2006-01-02T15:04:05Z07:00" $until | unixEpoch | int64) (now | unixEpoch | int64) -}}
{{- if and $until (gt (mul 3 $left) (mul 86400 (index . 2))) }}{{ toJson $found }}{{ else }}{}{{ end -}}
{{- end -}}

{{/* Until when the certificate in a Secret is valid after this revision. Call it with (list $ NAME DAYS). */}}
{{- define "turnout.endsAt" -}}
{{- $kept := include "turnout.keptSecret" . | fromJson -}}
{{- dig "metadata" "annotations" "turnout.dev/valid-until" "" $kept | default (include "turnout.validUntil" (index . 2)) -}}
{{- end -}}

{{/* The same of kube-scheduler's client certificate, which a new CA ends as well. */}}
{{- define "turnout.clientEndsAt" -}}
{{- $days := .Values.extender.tls.validityDays -}}
{{- $ca := include "turnout.keptSecret" (list . (printf "%s-ca" (include "turnout.fullname" .)) (mul 5 $days)) | fromJson -}}
{{- if $ca }}{{ include "turnout.endsAt" (list . (include "turnout.clientSecret" .) $days) }}{{ else }}{{ include "turnout.validUntil" $days }}{{ end -}}
{{- end -}}

{{/* A Secret with a certificate. Call it with a dict: root, component, name, data, until. */}}
{{- define "turnout.certificateSecret" -}}
apiVersion: v1
kind: Secret
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "turnout.labels" (list .root .component) | nindent 4 }}
  annotations:
    turnout.dev/valid-until: {{ .until | quote }}
type: kubernetes.io/tls
data: {{- toYaml .data | nindent 2 }}
{{- end -}}

{{/* The CA of this release for the extender's certificates, as JSON: cert and key as PEM, and until. */}}
{{- define "turnout.authority" -}}
{{- $days := mul 5 .Values.extender.tls.validityDays -}}
{{- $name := printf "%s-ca" (include "turnout.fullname" .) -}}
{{- $kept := include "turnout.keptSecret" (list . $name $days) | fromJson -}}
{{- if $kept -}}
{{- $data := $kept.data -}}
{{- toJson (dict "isKept" true "cert" (index $data "tls.crt" | b64dec) "key" (index $data "tls.key" | b64dec)
  "until" (index $kept.metadata.annotations "turnout.dev/valid-until")) -}}
{{- else -}}
{{- $made := genCA $name (int $days) -}}
{{- toJson (dict "isKept" false "cert" $made.Cert "key" $made.Key "until" (include "turnout.validUntil" $days)) -}}
{{- end -}}
{{- end -}}
