"""The embedder in the shape other programs ask for. Each file imports the program it is for, and nothing else does.

from bertie.tasks.adapters.langchain import BertieEmbeddings
from bertie.tasks.adapters.sklearn import TextEmbedder
from bertie.tasks.adapters.mteb import MtebEncoder
"""
