"""Making a BERT smaller: what can go, what it costs, what is lost, and a search for the best of it.

layers.py       heads, neurons and layers taken out of a model, and put back as zeros
vocabulary.py   tokens that a corpus never uses
cost.py         the time of each part on an engine, measured
importance.py   what each part contributes to the answers
search.py       the best sizes under a budget of time or of parameters
refit.py        what is left, fitted again to give the original's states
targets.py      what a task's answers are, and how well a model gives them
work.py         the search: observe, choose, cut, fit, measure
learning.py     a smaller model learns from the original
folders.py      what a compressed model's folder holds
run.py          `bertie.compress`: all of it, in order
report.py       what was cut, what it cost, in words and as charts
"""
