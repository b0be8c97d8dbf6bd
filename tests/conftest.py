"""One thread per process: two test workers share two cores, and the models here are tiny."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; children inherit it
