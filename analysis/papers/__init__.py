"""Published papers: their grids, numbers and claims, redrawn and judged from the tables."""

from analysis.papers import goyal2017, limit2020, mccord2021

#: The papers whose points are batches, warmups and lr rules.
PAPERS = {paper.name: paper for paper in (mccord2021.PAPER, goyal2017.PAPER)}

#: All papers; the claims of the first are judged on any runs.
NAMES = (*PAPERS, limit2020.NAME)
