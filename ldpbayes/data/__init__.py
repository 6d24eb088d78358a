"""Released data: releases, tables of noisy cells, their files, and sketches, which `fit` takes in their place."""

from ldpbayes._core.tabular import arrays_of_frames
from ldpbayes.data._formula import DesignMatrix, Formula
from ldpbayes.data._tables import NoisyTable
from ldpbayes.data.category_sketches import BitCounts, CountSketch, ExpandedSketch
from ldpbayes.data.readers.layouts import Layout, open, register_layout
from ldpbayes.data.readers.rappor import read_rappor
from ldpbayes.data.release import Release, ReleaseWarning, RepeatedAnswersWarning
from ldpbayes.data.sampling import SamplingDesign
from ldpbayes.data.sketches import Groups, MixedSketch, PanelSketch, Sketch
from ldpbayes.data.streams import sketch_from

__all__ = [
    "BitCounts",
    "CountSketch",
    "DesignMatrix",
    "ExpandedSketch",
    "Formula",
    "Groups",
    "Layout",
    "MixedSketch",
    "NoisyTable",
    "PanelSketch",
    "Release",
    "ReleaseWarning",
    "RepeatedAnswersWarning",
    "SamplingDesign",
    "Sketch",
    "arrays_of_frames",
    "open",
    "read_rappor",
    "register_layout",
    "sketch_from",
]
