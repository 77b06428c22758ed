"""The cases of test_with_torch.py, known to the test without importing torch."""

WORLDS = (1, 2, 3)

# name: (global batch, micro batch, samples of this batch)
BATCHES = {
    "even": (12, None, 12),
    "uneven": (7, None, 7),
    "accumulated": (12, 2, 12),
    "accumulated unevenly": (7, 2, 7),
    "a rank without samples": (2, None, 2),
    "one sample, passes for all": (1, 1, 1),
    "a last pass without samples": (5, 1, 5),
    "a short last batch": (12, 3, 5),
}
