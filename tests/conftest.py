"""Tests run on one thread: results do not depend on how a machine splits sums, and two test runs do not fight over cores."""

import torch

torch.set_num_threads(1)
