"""Reports: one self-contained HTML page about runs and sweeps, and the same figures for papers.

Rules of this package
- A figure is an object that knows its title, its definition, its table, how ECharts draws it and how matplotlib does.
- Figures are made from what a run's folder holds, nothing is simulated here.
"""
