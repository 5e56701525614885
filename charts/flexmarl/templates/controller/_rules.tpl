{{/*
What the controller may do in a namespace that it watches. Objects are applied, which needs create and patch;
what is not wanted any more is deleted.
*/}}
{{- define "flexmarl.rules" -}}
- apiGroups: [flexmarl.io]
  resources: [marljobs]
  verbs: [get, list, watch]
- apiGroups: [flexmarl.io]
  resources: [marljobs/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
- apiGroups: [""]
  resources: [configmaps, secrets, services, serviceaccounts, persistentvolumeclaims]
  verbs: [get, list, create, patch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, create, patch, delete]
- apiGroups: [scheduling.k8s.io, scheduling.x-k8s.io, scheduling.volcano.sh]
  resources: [podgroups]
  verbs: [get, list, create, patch, delete]
{{- end -}}

{{/* Of the cluster, not of a namespace. */}}
{{- define "flexmarl.clusterRules" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list]
{{- end -}}
