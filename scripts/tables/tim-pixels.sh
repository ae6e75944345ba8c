#!/usr/bin/env bash
# Train the rows of TIM (Lamb et al. 2021), section 4.1, models of pictures: of a digit beside a photograph, and of
# photographs. There are six rows of 30 epochs each. Prepare the data first, from MNIST and CIFAR-10:
#
#     modular-fairseq prepare-pixels MNIST.gz --right CIFAR --size 16x16 --grey --colours 256 \
#         --valid 2000 --test 2000 --train 60000 --out data/pixels-pairs
#     modular-fairseq prepare-pixels CIFAR --size 32x32 --valid 2000 --test 10000 --out data/pixels-photos
#
# MNIST.gz is train-images-idx3-ubyte.gz. CIFAR is a folder with the image files of CIFAR-10 in train and test, or
# an .npz file with x_train and x_test. Then run one of these commands:
#
#     # Show the exact commands.
#     bash scripts/tables/tim-pixels.sh --dry-run
#     # Train all rows with three seeds. The options after -- are for fairseq-train.
#     bash scripts/tables/tim-pixels.sh --seeds 1,2,3 -- --fp16
#     # Train one row, with the corpora in DIR instead of data/.
#     bash scripts/tables/tim-pixels.sh --only pairs-tim --data DIR
#     # Train narrow models on toy pictures, in minutes on two cores. --scale small is larger.
#     bash scripts/tables/tim-pixels.sh --scale smoke
#
# The same command continues a run that was killed. The table is written to
# results/SCALE/tim-pixels/table.txt, .tsv and .md.

table=tim-pixels
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
