"""What was released: releases, their files, and sketches of them; no likelihood."""

from ldpbayes.data._count_sketch import CountSketch
from ldpbayes.data._expanded_sketch import ExpandedSketch
from ldpbayes.data._moment_sketch import MomentSketch
from ldpbayes.data._panel_sketch import PanelSketch
from ldpbayes.data._release import Release, ReleaseWarning
from ldpbayes.data._sketch import Sketch
from ldpbayes.data._sketching import sketch
from ldpbayes.data._table import arrays_of_frames
from ldpbayes.data._total_sketch import TotalSketch

__all__ = [
    "CountSketch",
    "ExpandedSketch",
    "MomentSketch",
    "PanelSketch",
    "Release",
    "ReleaseWarning",
    "Sketch",
    "TotalSketch",
    "arrays_of_frames",
    "sketch",
]
