"""Stands for torch: imported by the warm parent, found in the processes that come from it."""

import sys

sys.modules["torch"] = sys.modules[__name__]
