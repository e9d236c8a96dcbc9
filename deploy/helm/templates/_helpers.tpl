{{- define "batchd.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "batchd.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "batchd.labels" -}}
{{ include "batchd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end -}}

{{- define "batchd.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "batchd.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "batchd.secret" -}}
{{- default (include "batchd.fullname" .) .Values.secret.existing -}}
{{- end -}}

{{- define "batchd.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{/* What every pod has: no privileges, no token, no folder that it can write to. */}}
{{- define "batchd.podSecurity" -}}
automountServiceAccountToken: false
serviceAccountName: {{ include "batchd.serviceAccount" . }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "batchd.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* The pods of a role. Called with `root`, `role` and the values of the role. */}}
{{- define "batchd.deployment" -}}
{{- $root := .root -}}
{{- $role := .role -}}
{{- $values := .values -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "batchd.fullname" $root }}-{{ $role }}
  labels:
    {{- include "batchd.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ $role }}
spec:
  {{- if not .autoscaled }}
  replicas: {{ $values.replicas }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "batchd.selector" $root | nindent 6 }}
      app.kubernetes.io/component: {{ $role }}
  strategy:
    type: RollingUpdate
    rollingUpdate: { maxSurge: 1, maxUnavailable: 0 }
  template:
    metadata:
      labels:
        {{- include "batchd.labels" $root | nindent 8 }}
        app.kubernetes.io/component: {{ $role }}
      annotations:
        checksum/config: {{ toYaml $root.Values.config | sha256sum }}
        checksum/secret: {{ toYaml $root.Values.secret | sha256sum }}
        {{- with $values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      {{- include "batchd.podSecurity" $root | nindent 6 }}
      terminationGracePeriodSeconds: {{ $root.Values.terminationGracePeriodSeconds }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "batchd.selector" $root | nindent 14 }}
              app.kubernetes.io/component: {{ $role }}
      containers:
        - name: batchd
          image: {{ include "batchd.image" $root | quote }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          args: [serve, --config, /etc/batchd/batchd.yaml, --role, {{ $role }}]
          # The image has both for Docker, and the environment comes before the configuration.
          env:
            - { name: BATCHD_HOST, value: {{ $root.Values.config.server.host | quote }} }
            - { name: BATCHD_PORT, value: {{ $root.Values.config.server.port | quote }} }
          envFrom:
            - secretRef:
                name: {{ include "batchd.secret" $root }}
          ports:
            - name: http
              containerPort: {{ $root.Values.config.server.port }}
          startupProbe:
            httpGet: { path: /health, port: http }
            periodSeconds: 2
            failureThreshold: 60
          livenessProbe:
            httpGet: { path: /health, port: http }
            periodSeconds: 10
            timeoutSeconds: 5
          readinessProbe:
            httpGet: { path: /ready, port: http }
            periodSeconds: 5
            timeoutSeconds: 6
          {{- if eq $role "api" }}
          lifecycle:
            # Load balancers learn meanwhile that the pod is going.
            preStop:
              exec: { command: [sleep, "5"] }
          {{- end }}
          resources:
            {{- toYaml $values.resources | nindent 12 }}
          {{- include "batchd.containerSecurity" $root | nindent 10 }}
          volumeMounts:
            - { name: config, mountPath: /etc/batchd, readOnly: true }
            - { name: tmp, mountPath: /tmp }
            - { name: data, mountPath: /data }
            {{- with $root.Values.volumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        - name: config
          configMap:
            name: {{ include "batchd.fullname" $root }}
        - name: tmp
          emptyDir: {}
        # Nothing is kept here. The image declares a volume, which would otherwise be one of the node.
        - name: data
          emptyDir: {}
        {{- with $root.Values.volumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
{{- end -}}
