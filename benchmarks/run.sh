#!/usr/bin/env bash
# All measurements of backbones and of the command, as csv files in docs/benchmark, and their tables: make bench.
# With names of measurements only these: bash benchmarks/run.sh 4-resolution 6-train-sizes
# On a GPU: make bench DEVICE=cuda, which takes about ten minutes and writes docs/benchmark/cuda-*.csv.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${BENCH_PYTHON:-python}
device=${DEVICE:-cpu}
wanted=" $* "

# measure NAME SCRIPT OPTION ... runs a script of benchmarks/, which writes docs/benchmark/NAME.csv.
measure() {
    if [[ $wanted == "  " || $wanted == *" $1 "* ]]; then
        "$python" "benchmarks/$2.py" "${@:3}" --out "docs/benchmark/$1"
    fi
}

measure_on_gpu() {
    local sizes=(--sizes 800x1344 2048 --device cuda --memory --repeats 20)
    local peers=(timm-xcit swin-t vit-s16 resnet-50)
    for batch in 1 8; do
        for dtype in float32 bfloat16; do
            measure cuda-1-$dtype benchmark --models xcit-auto xcit-trunk "${peers[@]}" "${sizes[@]}" --batch $batch --dtype $dtype
            measure cuda-2-compiled-$dtype benchmark --models xcit-auto timm-xcit swin-t "${sizes[@]}" --batch $batch --dtype $dtype --compile
        done
    done
    measure cuda-3-train benchmark --models xcit-auto xcit-auto-cp "${peers[@]}" --mode train --device cuda --batch 2 --memory --repeats 10
    measure cuda-4-commands commands --models semantic_fpn --sizes 8192 20000 --modes whole --device cuda
}

measure_on_cpu() {
    local compared=(--models xcit-auto xcit-trunk timm-xcit swin-t convnext-t)
    local backbones=(xcit-auto xcit-plain xcit-trunk timm-xcit efficientvit-b3 efficientvit-l1 vit-s16 swin-t convnext-t resnet-50)
    measure 1-forward benchmark --models "${backbones[@]}"
    measure 1b-bfloat16 benchmark "${compared[@]}" --dtype bfloat16 --memory
    measure 1c-compiled benchmark "${compared[@]}" --compile
    measure 1d-compiled-bfloat16 benchmark "${compared[@]}" --compile --dtype bfloat16
    measure 2-forward-p8 benchmark --models xcit-auto xcit-plain --patch-size 8 --repeats 3
    measure 3-train benchmark --models xcit-auto xcit-plain xcit-auto-cp timm-xcit swin-t --mode train --batch 2 --repeats 3
    measure 4-resolution benchmark --models xcit-auto xcit-p8 vit-s16 timm-xcit efficientvit-b3 efficientvit-l1 swin-t resnet-50 --sizes 224 512 1024 2048 --repeats 3 --memory
    measure 5-huge benchmark --models xcit-auto --sizes 4000x6000 --repeats 3 --memory
    measure 6-train-sizes benchmark --models xcit-auto xcit-p8 vit-s16 swin-t --mode train --sizes 512 1024 --repeats 3 --memory
    measure 7-whole benchmark --models xcit-bands xcit-trunk xcit-tiles swin-t --sizes 1024 2048 4096 --repeats 3 --memory
    measure 8-whole-vit benchmark --models vit-s16 --sizes 1024 2048 --repeats 3 --memory
    measure 9-whole-larger benchmark --models xcit-bands --sizes 8192 20000 --limit 900 --memory
    measure 11-commands commands --models semantic_fpn mask_rcnn --sizes 2048 4096
    measure 11-commands commands --models upernet --sizes 2048
    measure 11-commands commands --models upernet --sizes 4096 --modes whole tiles
    measure 11-commands commands --models semantic_fpn mask_rcnn --sizes 8192 --modes whole tiles
    measure 11-commands commands --models semantic_fpn --sizes 20000 --modes whole
    for window in 512 768 1024 2048; do
        measure 11-commands commands --models semantic_fpn upernet --sizes 2048 --modes whole --window $window
    done
    measure 12-large-steps large_steps --archs n12 s12 --patch-sizes 16 8 --sizes 1024 2048 4096 --memory 12
    measure 12-large-steps large_steps --models semantic_fpn --archs n12 s12 --sizes 1024 2048 --memory 12
    measure 12-large-steps large_steps --models semantic_fpn --archs n12 s12 --sizes 2048 4096 --modes windows-384 windows-768 --memory 12
    measure 13-processes processes --processes 1 2 --sizes 4096 --repeats 3
    measure 14-whole-training whole_training
    measure 15-busy busy
}

if [[ $device == cuda ]]; then
    measure_on_gpu
else
    measure_on_cpu
    "$python" docs/readme_tables.py
fi
