{{- define "flexmarl.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" (.Release.Name | trunc 40 | trimSuffix "-") .Chart.Name -}}
{{- end -}}
{{- end -}}

{{- define "flexmarl.storeName" -}}
{{ include "flexmarl.fullname" . }}-store
{{- end -}}

{{/* Short enough for the name of a job. */}}
{{- define "flexmarl.testName" -}}
{{ include "flexmarl.fullname" . | trunc 35 | trimSuffix "-" }}-test
{{- end -}}

{{- define "flexmarl.serviceAccountName" -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.name is empty: name the ServiceAccount, or let the chart make one (serviceAccount.create)" -}}
{{- end -}}
{{- .Values.serviceAccount.name | default (include "flexmarl.fullname" .) -}}
{{- end -}}

{{/* Call with (list . "controller"). */}}
{{- define "flexmarl.selector" -}}
{{- $root := first . -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end -}}

{{/* Call with (list . "controller"). */}}
{{- define "flexmarl.labels" -}}
{{- $root := first . -}}
{{ include "flexmarl.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/part-of: flexmarl
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name ($root.Chart.Version | replace "+" "_") }}
{{- end -}}

{{/* Call with (list . .Values.image.slim). */}}
{{- define "flexmarl.image" -}}
{{- $root := first . -}}
{{- $image := last . -}}
{{- $registry := $root.Values.image.registry -}}
{{- if not $registry -}}
{{- fail (printf "\n\nimage.registry is empty, and no public registry has these images. Build and push them, from a checkout of version %s:\n\n  make images push REGISTRY=registry.example/team\n\nThen install with\n\n  --set image.registry=registry.example/team\n" $root.Chart.AppVersion) -}}
{{- end -}}
{{- $name := printf "%s/%s" (trimSuffix "/" $registry) $image.repository -}}
{{- if $image.digest -}}
{{ $name }}@{{ $image.digest }}
{{- else -}}
{{ $name }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "flexmarl.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "flexmarl.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Where a pod may run. Call with .Values.controller or .Values.store. */}}
{{- define "flexmarl.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* Name of the Secret that holds the store's URL. */}}
{{- define "flexmarl.storeSecret" -}}
{{- if and (not .Values.store.bundled) (not .Values.store.secretName) -}}
{{- fail "store.secretName is empty: without the bundled store (store.bundled) it must name a Secret with the key url, in the release's namespace" -}}
{{- end -}}
{{- .Values.store.secretName | default (include "flexmarl.storeName" .) -}}
{{- end -}}

{{/*
"true" when a claim of this StorageClass, empty: of the default one, need not stay pending for ever. Without a
cluster to ask (helm template) a class is taken for granted. Call with (list . "fast").
*/}}
{{- define "flexmarl.hasClass" -}}
{{- $class := last . -}}
{{- if not (lookup "v1" "Namespace" "" "default") -}}
true
{{- else if $class -}}
{{- ternary "true" "" (not (empty (lookup "storage.k8s.io/v1" "StorageClass" "" $class))) -}}
{{- else -}}
{{- $found := "" -}}
{{- range (lookup "storage.k8s.io/v1" "StorageClass" "" "").items -}}
{{- $notes := .metadata.annotations | default dict -}}
{{- range list "storageclass.kubernetes.io/is-default-class" "storageclass.beta.kubernetes.io/is-default-class" -}}
{{- if eq (get $notes . | toString) "true" -}}
{{- $found = "true" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}
{{- end -}}

{{/*
Where the store's log lies: "claim", "emptyDir" as asked for, or "no-class": emptyDir, because a claim would
stay pending for ever.
*/}}
{{- define "flexmarl.storeVolume" -}}
{{- if not .Values.store.persistence.enabled -}}
emptyDir
{{- else if lookup "v1" "PersistentVolumeClaim" .Release.Namespace (include "flexmarl.storeName" .) -}}
claim
{{- else -}}
{{- ternary "claim" "no-class" (eq (include "flexmarl.hasClass" (list . .Values.store.persistence.storageClass)) "true") -}}
{{- end -}}
{{- end -}}

{{/* A quantity of bytes in MiB. */}}
{{- define "flexmarl.mib" -}}
{{- $unit := regexFind "[A-Za-z]*$" . -}}
{{- $bytes := dict "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- divf (mulf (trimSuffix $unit . | float64) (get $bytes $unit)) 1048576.0 -}}
{{- end -}}

{{/* StorageClass of the claim of `helm test`; empty: the default one. */}}
{{- define "flexmarl.testClass" -}}
{{- .Values.test.storageClass | default .Values.store.persistence.storageClass -}}
{{- end -}}

{{/* Why `helm test` cannot pass; empty when it may. */}}
{{- define "flexmarl.noTest" -}}
{{- $class := include "flexmarl.testClass" . -}}
{{- if ne (include "flexmarl.hasClass" (list . $class)) "true" -}}
A job keeps its run on a claim, and the cluster has no {{ if $class }}StorageClass {{ $class }}{{ else }}default StorageClass{{ end }}. Make one (then upgrade this release) or name another in test.storageClass; until then each job has to name a claim that exists (checkpoint.claim.name) or a class (checkpoint.claim.storageClass).
{{- end -}}
{{- end -}}

{{/* Where the job of `helm test` runs: a namespace that is watched. */}}
{{- define "flexmarl.testNamespace" -}}
{{- if or (not .Values.watch.namespaces) (has .Release.Namespace .Values.watch.namespaces) -}}
{{ .Release.Namespace }}
{{- else -}}
{{ first .Values.watch.namespaces }}
{{- end -}}
{{- end -}}
