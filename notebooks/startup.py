"""What the kernels of the pipeline run first: each is done one to two seconds earlier."""

from puma.garbage import collect_rarely

collect_rarely()
