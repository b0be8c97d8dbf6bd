"""PUMA: the calibrated method, the paper's Algorithm 1, and the steps both are made of."""
