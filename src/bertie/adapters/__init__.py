"""The embedder in the shape other programs ask for. Each file imports the program it is for, and nothing else does.

from bertie.adapters.langchain import BertieEmbeddings
from bertie.adapters.sklearn import TextEmbedder
from bertie.adapters.mteb import MtebEncoder
"""
