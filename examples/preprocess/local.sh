#!/bin/sh
# Preprocess on one machine: sh examples/preprocess/local.sh 'corpus/*.jsonl.zst' tokenizer.json tokens/corpus
# A run that was ended goes on from its finished shards when the same command is given again.
set -eu
input=$1 vocabulary=$2 prefix=$3

turnout preprocess \
  --input "$input" \
  --tokenizer-type HFTokenizer --vocab-file "$vocabulary" --append-eod \
  --output-prefix "$prefix" --workers "${WORKERS:-$(nproc)}"
turnout preprocess check "${prefix}_text_document"
