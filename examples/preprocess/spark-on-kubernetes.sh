#!/bin/sh
# Preprocess with Spark on Kubernetes: API=https://10.0.0.1:6443 NAMESPACE=team-a sh spark-on-kubernetes.sh
# It uses your kubeconfig, and ends when the driver's pod ends. Spark 4.1 and Java 17 or newer are needed here, too.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
image=${IMAGE:-registry.example/turnout-preprocess:0.1.0}
site=/usr/local/lib/python3.11/site-packages # of the image
k8s=spark.kubernetes
volume=volumes.persistentVolumeClaim.data

exec spark-submit --master "k8s://$API" --deploy-mode cluster --name preprocess \
  --executor-cores=2 --num-executors=2 \
  --conf "$k8s.namespace=${NAMESPACE:-default}" \
  --conf "$k8s.container.image=$image" \
  --conf "$k8s.authenticate.driver.serviceAccountName=preprocess-spark" \
  --conf "$k8s.driver.podTemplateFile=$here/spark-pod.yaml" \
  --conf "$k8s.executor.podTemplateFile=$here/spark-pod.yaml" \
  --conf "$k8s.driver.$volume.options.claimName=training-data" \
  --conf "$k8s.driver.$volume.mount.path=/data" \
  --conf "$k8s.executor.$volume.options.claimName=training-data" \
  --conf "$k8s.executor.$volume.mount.path=/data" \
  --conf spark.executor.memory=1g \
  --conf spark.executor.memoryOverhead=2g \
  "local://$site/turnout/preprocess/pyspark_preprocess.py" \
  --input '/data/corpus/*.jsonl.zst' \
  --tokenizer-type HFTokenizer --vocab-file /data/tokenizer.json --append-eod \
  --output-prefix /data/tokens/corpus "$@"
