# %%
import bertie

corpus = ["Bats hunt by listening for echoes.", "Stamps were printed in 1840."]

# %% build_index
index = bertie.build_index(corpus, "index")
print(index.search("how do animals find food?", k=1)[0].text)
# → Bats hunt by listening for echoes.

# %% Index
index = bertie.Index.open("index")
print(len(index), [hit.id for hit in index.search("old letters", k=2)])
# → 2 ['1', '0']
