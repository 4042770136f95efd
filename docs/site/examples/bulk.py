# %%
import bertie

# %% bulk, BulkReport
from bertie.bulk import BulkReport

report = bertie.bulk("embed", "texts.txt", "vectors")
assert isinstance(report, BulkReport)
print(report.rows, report.errors)
# → 7 0

# %% prepare, Prepared, run
from bertie.bulk import Prepared, prepare, run

prepared = prepare("classify", "texts.txt", "labels", "my-sentiment")  # nothing is computed yet
assert isinstance(prepared, Prepared) and prepared.is_new
print(run(prepared).rows)
# → 7
