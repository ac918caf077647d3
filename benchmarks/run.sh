#!/usr/bin/env bash
# All measurements of backbones and of the command, as csv files in docs/benchmark, and their tables: make bench.
# With names of measurements only these: bash benchmarks/run.sh 4-resolution 6-train-sizes
set -euo pipefail
cd "$(dirname "$0")/.."
out=docs/benchmark
wanted=" $* "
measure() {
    if [[ $wanted == "  " || $wanted == *" $1 "* ]]; then
        "${BENCH_PYTHON:-python}" benchmarks/benchmark.py "${@:2}" --out "$out/$1"
    fi
}
compared=(--models xcit-auto xcit-trunk timm-xcit swin-t convnext-t)

measure 1-forward --models xcit-auto xcit-plain xcit-trunk timm-xcit vit-s16 swin-t convnext-t resnet-50
measure 1b-bfloat16 "${compared[@]}" --dtype bfloat16 --memory --repeats 9
measure 1c-compiled "${compared[@]}" --compile
measure 1d-compiled-bfloat16 "${compared[@]}" --compile --dtype bfloat16
measure 2-forward-p8 --models xcit-auto xcit-plain --patch-size 8 --repeats 3
measure 3-train --models xcit-auto xcit-plain xcit-auto-cp timm-xcit swin-t --mode train --batch 2 --repeats 3
measure 4-resolution --models xcit-auto xcit-p8 xcit-plain vit-s16 timm-xcit swin-t resnet-50 --sizes 224 384 512 1024 1536 2048 3072 --repeats 3 --memory
measure 5-huge --models xcit-auto --sizes 4000x6000 --repeats 3 --memory
measure 6-train-sizes --models xcit-auto xcit-p8 vit-s16 swin-t --mode train --sizes 512 1024 --repeats 3 --memory
measure 7-whole --models xcit-bands xcit-trunk xcit-tiles swin-t --sizes 1024 2048 4096 --repeats 3 --memory
measure 8-whole-vit --models vit-s16 --sizes 1024 2048 --repeats 3 --memory
measure 9-whole-larger --models xcit-bands --sizes 8192 20000 --limit 900 --memory
commands() {
    if [[ $wanted == "  " || $wanted == *" 11-commands "* ]]; then
        "${BENCH_PYTHON:-python}" benchmarks/commands.py "$@" --out "$out/11-commands"
    fi
}
commands --models semantic_fpn mask_rcnn --sizes 2048 4096
commands --models upernet --sizes 2048
commands --models upernet --sizes 4096 --modes whole tiles
commands --models semantic_fpn mask_rcnn --sizes 8192 --modes whole tiles
commands --models semantic_fpn --sizes 20000 --modes whole
steps() {
    if [[ $wanted == "  " || $wanted == *" 12-large-steps "* ]]; then
        "${BENCH_PYTHON:-python}" benchmarks/large_steps.py "$@" --memory 12 --out "$out/12-large-steps"
    fi
}
steps --archs n12 s12 --patch-sizes 16 8 --sizes 1024 2048 4096
steps --models semantic_fpn --archs n12 s12 --sizes 1024 2048
processes() {
    if [[ $wanted == "  " || $wanted == *" 13-processes "* ]]; then
        "${BENCH_PYTHON:-python}" benchmarks/processes.py "$@" --out "$out/13-processes"
    fi
}
processes --processes 1 2 --sizes 4096 --repeats 3
"${BENCH_PYTHON:-python}" docs/readme_tables.py
