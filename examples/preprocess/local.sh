#!/bin/sh
# Preprocess on one machine: sh examples/preprocess/local.sh 'corpus/*.jsonl.zst' tokenizer.json tokens/corpus
# If a run was stopped, the same command continues it from its finished shards.
set -eu
input=$1 vocabulary=$2 prefix=$3

turnout preprocess \
  --input "$input" \
  --tokenizer-type HFTokenizer --vocab-file "$vocabulary" --append-eod \
  --output-prefix "$prefix" --workers "${WORKERS:-$(nproc)}"
turnout preprocess check "${prefix}_text_document"
